"""The real sensors, agents and runs under a virtual clock, over years.

`world` is the place of a soak and decides the steps of time; `script` has the incidents; `watch`
and its parts check what must always hold; `doubles` stand for processes, Spark and time. `scenes`
are short soaks of one incident each, and `mutants` remove one fix, which the scene has to notice.
"""
