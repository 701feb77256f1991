"""A tokenizer of letters."""

NEW = 16


class Letters:
    """A tokenizer whose token i is the i-th letter; enough for a streamer."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join(chr(65 + int(token) % 26) for token in ids)

    def stream_decoder(self, skip_special_tokens=True):
        tokenizer = self

        class Decoder:
            def put(self, token):
                return tokenizer.decode([token])

            def end(self):
                return ""

        return Decoder()
