"""LogHub of Alibaba Cloud's Simple Log Service (SLS): a logstore's shards as a source.

The service's own SDK (`aliyun-log-python-sdk`) sends the requests. Only `client` imports it, and
the first request imports `client`, so that a code location loads without it.

`registry` and the commands for checkpoints of other consumers import this package.
"""
