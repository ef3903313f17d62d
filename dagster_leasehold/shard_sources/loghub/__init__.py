"""LogHub of Alibaba Cloud's Simple Log Service (SLS): a logstore's shards as a source.

The wire is left to the service's own SDK (`aliyun-log-python-sdk`). Only `client` imports it, and
`client` is imported when the first request is made, so that a code location loads without it.
"""
