"""Messages and rows that tests of formats share."""


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def system(content):
    return {"role": "system", "content": content}


CALL = {"type": "function", "function": {"name": "find", "arguments": {"what": "shop"}}}
CALLED = [user("a"), {**assistant(""), "tool_calls": [CALL]}, {"role": "tool", "content": "12"}, assistant("b")]
GOOD = '{"instruction": "a", "output": "b"}'
