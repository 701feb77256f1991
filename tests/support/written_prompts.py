"""What a prompt writes, and what is learnt of it."""

from __future__ import annotations

IM = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
IM_SYSTEM = "<|im_start|>system\n{}<|im_end|>\n"
HEAD = "<|start_header_id|>{}<|end_header_id|>\n\n"
LLAMA3 = HEAD.format("user") + "{}<|eot_id|>" + HEAD.format("assistant")


def written(encoder, messages, **options):
    """A conversation as text, with brackets around what is learnt."""
    ids, learnt = encoder.tokenizer.example(messages, **options)
    text, inside = "", False
    for one, mark in zip(ids, learnt, strict=True):
        text, mark = text + "]" * (inside and mark != 1) + "|" * (mark < 0), mark == 1
        text += "[" * (mark and not inside)
        text, inside = text + encoder.tokenizer.decode([one], skip_special_tokens=False), mark
    return text + "]" * inside


def said(words):
    """Messages of a conversation; a word S is the system's."""
    roles = {"S": "system", "A": "user", "C": "user"}
    return [{"role": roles.get(word, "assistant"), "content": word} for word in words]
