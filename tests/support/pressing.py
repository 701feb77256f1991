"""Ctrl-C in the middle of a function."""

import signal

import pytest


def press_within(monkeypatch, owner, name, call, press_at=3):
    """Ctrl-C behind a function's third call, or another. How often it is called in all."""
    calls, own = [], getattr(owner, name)

    def pressing(*arguments, **settings):
        result = own(*arguments, **settings)
        calls.append(name)
        if len(calls) == press_at:
            signal.raise_signal(signal.SIGINT)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, pressing)
        with pytest.raises(KeyboardInterrupt):
            call()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return len(calls)
