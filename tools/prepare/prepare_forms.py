"""How a prompt and its response become one text: a chat template, or a line with two places."""
import json
import re

from prepare_rows import InputError


class LineForm:
    """A text with {prompt} and then {response} in it; \\n, \\t and \\\\ are what they are in C."""

    is_chat = False

    def __init__(self, template):
        if template.count("{prompt}") != 1 or template.count("{response}") != 1 \
                or template.index("{prompt}") > template.index("{response}"):
            raise InputError(f"--template '{template}': expected {{prompt}} and behind it {{response}}, "
                             "each once")
        letters = {"n": "\n", "t": "\t", "\\": "\\"}
        text = re.sub(r"\\([nt\\])", lambda match: letters[match[1]], template)
        self.head, rest = text.split("{prompt}")
        self.middle, self.tail = rest.split("{response}")

    def write(self, prompt, response):
        """(text, where in it the response begins)."""
        head = self.head + prompt + self.middle
        return head + response + self.tail, len(head)


class ChatForm:
    """The tokenizer's own chat template, with the prompt as the user's turn.

    Rendered in Jinja's sandbox. Templates that write today's date, if they can, write none here: a
    token file must be the same on every day.
    """

    is_chat = True

    def __init__(self, files, template):
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise InputError("chat templates need the Python package 'jinja2': pip install jinja2; or "
                             "give --template") from None
        self.errors = TemplateError
        self.place = files.path.parent
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                    extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = lambda value, **options: json.dumps(
            value, ensure_ascii=False, **options)

        def raise_exception(message):
            raise TemplateError(message)
        environment.globals["raise_exception"] = raise_exception
        try:
            self.template = environment.from_string(template)
        except TemplateError as error:
            raise self.failure(error) from None
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        self.tokens = {name: files.special_token(name) or "" for name in names}

    def failure(self, error):
        return InputError(f"{self.place}: its chat template cannot be used: {error}; "
                          "give --template, e.g. '{prompt}\\n{response}'")

    def render(self, messages, add_generation_prompt):
        try:
            return self.template.render(messages=messages, add_generation_prompt=add_generation_prompt,
                                        **self.tokens)
        except (self.errors, TypeError, ValueError, ArithmeticError, OverflowError, LookupError,
                AttributeError, RecursionError) as error:
            raise self.failure(error) from None

    def write(self, prompt, response):
        """(text, where in it the response begins)."""
        user = {"role": "user", "content": prompt}
        head = self.render([user], True)
        text = self.render([user, {"role": "assistant", "content": response}], False)
        if not text.startswith(head):
            raise self.failure("it writes a prompt in another way when a response follows")
        return text, len(head)


def find_chat_template(files):
    """The text of the chat template beside the tokenizer, or None."""
    beside = files.path.parent / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    template = files.config.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = next((item.get("template") for item in template
                         if isinstance(item, dict) and item.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def make_form(files, template):
    if template is not None:
        return LineForm(template)
    chat = find_chat_template(files)
    if chat is None:
        raise InputError(f"{files.path.parent}: holds no chat template; give --template, e.g. "
                         "'{prompt}\\n{response}'")
    return ChatForm(files, chat)
