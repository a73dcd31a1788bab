"""Turns texts into token ids: one text or a pair for a classifier, documents for a language model."""
import hashlib
import json
import pathlib

from prepare_rows import InputError

USUAL_PAD_TOKENS = ("[PAD]", "<pad>", "<|endoftext|>", "</s>")
USUAL_EOS_TOKENS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|im_end|>")


class TokenizerFiles:
    """A tokenizer.json, and the names of special tokens in the tokenizer_config.json beside it."""

    def __init__(self, place):
        path = pathlib.Path(place)
        if path.is_dir():
            path /= "tokenizer.json"
        if not path.is_file():
            raise InputError(f"{path}: no such file; --tokenizer takes a tokenizer.json or its folder")
        self.path = path
        self.data = path.read_bytes()
        self.sha256 = hashlib.sha256(self.data).hexdigest()
        self.name = path.resolve().parent.name if path.name == "tokenizer.json" else path.stem
        self.config = self.read_config(path.parent / "tokenizer_config.json")

    @staticmethod
    def read_config(path):
        if not path.is_file():
            return {}
        try:
            config = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: no JSON: {error}") from None
        if not isinstance(config, dict):
            raise InputError(f"{path}: expected an object, found {type(config).__name__}")
        return config

    def special_token(self, key):
        """The token that the configuration has under "eos_token" or the like, or None."""
        token = self.config.get(key)
        if isinstance(token, dict):
            token = token.get("content")
        return token if isinstance(token, str) else None

    def load(self):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise InputError("the Python package 'tokenizers' is missing: pip install tokenizers") from None
        try:
            return Tokenizer.from_buffer(self.data)
        except Exception as error:  # the package raises plain Exception
            raise InputError(f"{self.path}: no tokenizer: {error}") from None

    def token_id(self, tokenizer, token):
        found = tokenizer.token_to_id(token)
        if found is None:
            raise InputError(f"{self.path}: has no token '{token}'")
        return found


def first_known(tokenizer, tokens):
    return next((tokenizer.token_to_id(token) for token in tokens
                 if token and tokenizer.token_to_id(token) is not None), None)


class ClassEncoder:
    """Texts, or pairs of them, cut to `max_length` tokens if that is given."""

    def __init__(self, files, max_length, pad_token):
        self.whole, self.cut = files.load(), files.load()
        self.pad_token_id = self.find_pad(files, pad_token)
        self.max_length = max_length
        # Files often come with the limits of some earlier use switched on.
        self.whole.no_truncation()
        self.whole.no_padding()
        self.cut.no_padding()
        if max_length:
            self.cut.enable_truncation(max_length)

    def find_pad(self, files, pad_token):
        if pad_token is not None:
            return files.token_id(self.whole, pad_token)
        if self.whole.padding:
            return self.whole.padding["pad_id"]
        found = first_known(self.whole, USUAL_PAD_TOKENS)
        if found is None:
            raise InputError(f"{files.path}: names no padding token; give --pad-token TOKEN")
        return found

    def encode(self, texts):
        """(token ids, number of tokens before cutting, 0) of each text or pair."""
        items = [tuple(text) if len(text) == 2 else text[0] for text in texts]
        for item, encoding in zip(items, self.whole.encode_batch(items)):
            ids = encoding.ids
            length = len(ids)
            if self.max_length and length > self.max_length:
                pair = item if isinstance(item, tuple) else (item,)
                ids = self.cut.encode(*pair).ids
            yield ids, length, 0


class DocumentEncoder:
    """Whole documents that end in the end-of-text token, for a language model."""

    def __init__(self, files, pad_token, eos_token):
        self.tokenizer = files.load()
        self.eos_token_id = self.find_eos(files, eos_token)
        self.pad_token_id = self.find_pad(files, pad_token)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def find_eos(self, files, eos_token):
        eos_token = eos_token or files.special_token("eos_token")
        if eos_token is not None:
            return files.token_id(self.tokenizer, eos_token)
        found = first_known(self.tokenizer, USUAL_EOS_TOKENS)
        if found is None:
            raise InputError(f"{files.path}: names no end-of-text token; give --eos-token TOKEN")
        return found

    # Language models often have no token for padding; which one stands there changes nothing.
    def find_pad(self, files, pad_token):
        if pad_token is not None:
            return files.token_id(self.tokenizer, pad_token)
        if self.tokenizer.padding:
            return self.tokenizer.padding["pad_id"]
        found = first_known(self.tokenizer, (files.special_token("pad_token"), "[PAD]", "<pad>"))
        return self.eos_token_id if found is None else found

    def ended(self, ids):
        return ids if ids and ids[-1] == self.eos_token_id else [*ids, self.eos_token_id]

    def encode(self, texts):
        """(token ids, their number, 0) of each text; no ids where the text has none of its own."""
        for encoding in self.tokenizer.encode_batch([text[0] for text in texts]):
            has_text = any(part is not None for part in encoding.sequence_ids)
            ids = self.ended(encoding.ids) if has_text else []
            yield ids, len(ids), 0


class InstructionEncoder(DocumentEncoder):
    """Prompt and response as `form` writes them (prepare_forms.py)."""

    def __init__(self, files, pad_token, eos_token, form):
        super().__init__(files, pad_token, eos_token)
        self.form = form

    def encode(self, texts):
        """(token ids, their number, how many of them are the prompt's) of each pair.

        A token that holds any letter of the response is the response's. All are the prompt's where
        the response has none.
        """
        written = [self.form.write(prompt, response) for prompt, response in texts]
        encodings = self.tokenizer.encode_batch([text for text, _ in written],
                                                add_special_tokens=not self.form.is_chat)
        for (_, boundary), encoding in zip(written, encodings):
            ids = encoding.ids
            places = enumerate(zip(encoding.offsets, encoding.sequence_ids))
            masked = next((i for i, ((_, end), sequence) in places
                           if end > boundary and sequence is not None), None)
            if masked is None:
                yield ids, len(ids), len(ids)
                continue
            # A chat template ends a turn itself.
            ids = ids if self.form.is_chat else self.ended(ids)
            yield ids, len(ids), masked
