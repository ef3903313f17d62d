"""The real sensors, agents and runs under a virtual clock, over years.

`world` is where a soak happens and says how time is coarsened; `script` is what goes wrong in it;
`watch` and its parts are what must hold all along; `doubles` stand for processes, Spark and time.
`scenes` are short soaks of one thing each, and `mutants` take one remedy out of the code, which the
scene then has to notice.
"""
