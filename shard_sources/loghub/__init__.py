"""LogHub of Alibaba Cloud's Simple Log Service (SLS): a logstore's shards as a source.

The wire is left to the service's own SDK (`aliyun-log-python-sdk`), which is imported where a
request is made: `kind` is all that a code location loads.
"""
