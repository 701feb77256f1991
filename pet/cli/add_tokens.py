"""``pet add-tokens``: a checkpoint whose tokenizer has further tokens, from disk to disk."""

from __future__ import annotations

from collections.abc import Sequence

from pet.cli.output import free_output
from pet.cli.parser import Parser
from pet.names import find_model

EXAMPLES = [
    (
        "pet add-tokens llama_tiny '<|im_start|>' --eos '<|im_end|>' --output chatml",
        "two control tokens, one of which ends answers from now on",
    ),
    ("pet add-tokens gpt_tiny '<protein>' --plain --output proteins", "a token that is text"),
]


def main(arguments: Sequence[str]) -> int:
    """Add the tokens, and say which ids they have."""
    parser = Parser(
        "pet add-tokens",
        "Write a checkpoint whose tokenizer has further tokens. Its embedding and its head get rows for them, the mean "
        "of all others, where they have none. One tensor is in memory at a time.",
        EXAMPLES,
    )
    parser.add_argument("base", metavar="MODEL", help="checkpoint directory, or the name of a bundled tiny base")
    parser.add_argument("tokens", metavar="TOKEN", nargs="*", help="text of a token; one that is there is passed over")
    parser.add_argument("--plain", action="store_true", help="text, not control tokens: found in what messages say")
    for role, meaning in (("bos", "begins texts"), ("eos", "ends texts and answers"), ("pad", "fills up rows")):
        parser.add_argument(f"--{role}", metavar="TOKEN", help=f"the token, new or not, that {meaning} from now on")
    parser.add_shared("--output", "--max-shard-size", "--force")
    options = parser.read(arguments)
    roles = {f"{role}_token": getattr(options, role) for role in ("bos", "eos", "pad")}
    if not options.tokens and not any(roles.values()):
        parser.error("give a token")
    with free_output(options) as output:
        from pet.added_tokens import add_tokens

        size = options.max_shard_size
        print(add_tokens(find_model(options.base), options.tokens, output, options.plain, **roles, max_shard_size=size))
    return 0
