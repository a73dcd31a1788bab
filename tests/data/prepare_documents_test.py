"""Tests of ullage-prepare's causal and instruct tasks: tokens, labels, templates, mistakes."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

import safetensors
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools/prepare"
sys.path.insert(0, str(TOOLS))
import ullage_prepare  # noqa: E402

WORDS = ["<s>", "</s>", "<unk>", "<user>", "<bot>", "what", "is", "it", "good", "bad", ":"]
IDS = {word: i for i, word in enumerate(WORDS)}
CHAT = ("{{ bos_token }}{% for m in messages %}\n"
        "{% if m.role == 'user' %}<user>{{ m.content }}{% else %}<bot>{{ m.content }}{{ eos_token }}{% endif %}\n"
        "{% endfor %}\n{% if add_generation_prompt %}<bot>{% endif %}")


def make_folder(folder, **config):
    tokenizer = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in WORDS[:5]])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(3)  # left on by an earlier use: must not cut anything
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


class Prepared:
    def __init__(self, path):
        with safetensors.safe_open(path, "np") as file:
            self.metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        self.types = {name: str(tensor.dtype) for name, tensor in tensors.items()}
        offsets = tensors["offsets"].tolist()
        assert offsets[0] == 0 and offsets[-1] == len(tensors["input_ids"])

        def split(name):
            values = tensors[name].tolist()
            return [values[a:b] for a, b in zip(offsets[:-1], offsets[1:])]
        self.records = split("input_ids")
        self.labels = split("labels") if "labels" in tensors else None


class DocumentsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        make_folder(self.dir / "tiny")

    def write(self, name, content):
        (self.dir / name).write_text(content)
        return str(self.dir / name)

    def prepare(self, task, files, *options):
        """The token file and what was printed; `files` are names with their content."""
        paths = [self.write(name, content) for name, content in files.items()]
        out = str(self.dir / "out.safetensors")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            ullage_prepare.main([*paths, "--task", task, "--tokenizer", str(self.dir / "tiny"),
                                 "--out", out, *options])
        return Prepared(out), printed.getvalue()

    def refusal(self, task, files, *options):
        with self.assertRaises(SystemExit) as caught, contextlib.redirect_stderr(io.StringIO()) as stderr:
            self.prepare(task, files, *options)
        self.assertFalse((self.dir / "out.safetensors").exists())
        return f"{caught.exception.code} {stderr.getvalue()}"

    def test_causal_documents_end_in_the_end_of_text_token(self):
        made, printed = self.prepare("causal", {"a.jsonl": '{"text": "it is good"}\n{"text": "bad </s>"}\n'})
        self.assertEqual(made.records, [[0, 7, 6, 8, 1], [0, 9, 1]])
        self.assertEqual(made.types, {"input_ids": "int32", "offsets": "int64"})
        self.assertEqual({key: made.metadata[key] for key in ("format", "version", "task", "pad_token_id")},
                         {"format": "ullage-tokens", "version": "1", "task": "causal", "pad_token_id": "1"})
        self.assertNotIn("num_labels", made.metadata)
        self.assertIn("2 records, 8 tokens", printed)
        self.assertIn("2 documents, 8 tokens\n", printed)

    def test_a_plain_file_is_one_document_and_files_may_be_mixed(self):
        made, printed = self.prepare("causal", {"a.txt": "it is\n\ngood\n", "b.tsv": "body\nbad\nit\n"},
                                     "--text", "body")
        self.assertEqual(made.records, [[0, 7, 6, 8, 1], [0, 9, 1], [0, 7, 1]])
        self.assertIn(f"0 ({self.dir / 'a.txt'}, line 1, 5 tokens)", printed)

    def test_the_end_of_text_token_can_be_named(self):
        made, _ = self.prepare("causal", {"a.txt": "it"}, "--eos-token", "<unk>", "--pad-token", "<s>")
        self.assertEqual((made.records, made.metadata["pad_token_id"]), ([[0, 7, 2]], "0"))
        self.assertIn("has no token '<end>'", self.refusal_after_success("<end>"))

    def refusal_after_success(self, token):
        (self.dir / "out.safetensors").unlink()
        return self.refusal("causal", {"a.txt": "it"}, "--eos-token", token)

    def test_causal_documents_can_be_held_out(self):
        rows = "".join(json.dumps({"text": "it " * (i + 1)}) + "\n" for i in range(40))
        held = str(self.dir / "eval.safetensors")
        made, _ = self.prepare("causal", {"a.jsonl": rows}, "--eval-count", "10", "--eval-out", held)
        lengths = [len(record) - 2 for record in made.records + Prepared(held).records]
        self.assertEqual((len(made.records), sorted(lengths)), (30, list(range(1, 41))))

    def test_instruct_masks_the_prompt(self):
        made, printed = self.prepare("instruct", {"a.jsonl": '{"prompt": "what is it", "response": "good bad"}\n'},
                                     "--template", r"{prompt} :\n{response}")
        self.assertEqual(made.records, [[0, 5, 6, 7, 10, 8, 9, 1]])
        self.assertEqual(made.labels, [[-100, -100, -100, -100, -100, 8, 9, 1]])
        self.assertEqual(made.types, {"input_ids": "int32", "labels": "int32", "offsets": "int64"})
        self.assertEqual(made.metadata["task"], "instruct")
        self.assertIn("1 documents, 8 tokens, 37.5 % of them of responses", printed)

    def test_what_the_template_has_behind_the_response_is_learnt(self):
        made, _ = self.prepare("instruct", {"a.csv": "q,a\nit,bad\n"}, "--prompt", "q", "--response", "a",
                               "--template", "<user> {prompt} <bot> {response} <unk>")
        self.assertEqual(made.records, [[0, 3, 7, 4, 9, 2, 1]])
        self.assertEqual(made.labels, [[-100, -100, -100, -100, 9, 2, 1]])

    def test_a_chat_template_in_the_folder_is_used(self):
        for place in ("tokenizer_config.json", "chat_template.jinja", "list"):
            with self.subTest(place=place):
                folder = self.dir / place.split(".")[0]
                template = [{"name": "tools", "template": "x"}, {"name": "default", "template": CHAT}] \
                    if place == "list" else CHAT
                make_folder(folder, **({} if place.endswith("jinja") else {"chat_template": template}))
                if place.endswith("jinja"):
                    (folder / place).write_text(CHAT)
                made, _ = self.prepare("instruct", {"a.jsonl": '{"prompt": "it", "response": "bad"}\n'},
                                       "--tokenizer", str(folder))
                # The template writes <s> and </s> itself: neither is there twice.
                self.assertEqual(made.records, [[0, 3, 7, 4, 9, 1]])
                self.assertEqual(made.labels, [[-100, -100, -100, -100, 9, 1]])

    def test_chat_templates_that_cannot_be_used_are_refused(self):
        row = {"a.jsonl": '{"prompt": "it", "response": "bad"}\n'}
        self.assertIn("holds no chat template; give --template", self.refusal("instruct", row))
        for name, template, says in [
                ("syntax", "{% for %}", "chat template cannot be used"),
                ("raise", "{{ raise_exception('system first') }}", "system first"),
                ("code", "{{ ''.__class__.__mro__ }}", "cannot be used"),
                ("other", "{{ messages | length }}", "in another way when a response follows")]:
            make_folder(self.dir / name, chat_template=template)
            with self.subTest(name=name):
                self.assertIn(says, self.refusal("instruct", row, "--tokenizer", str(self.dir / name)))

    def test_bad_records_name_their_line(self):
        good = '{"prompt": "it", "response": "bad", "text": "it"}\n'
        for task, row, says in [
                ("causal", '{"text": " "}', "line 2: the text has no tokens"),
                ("causal", '{"text": 4}', "line 2: the text must be a string"),
                ("causal", '{"text": "\\ud800"}', "line 2: the text holds half of a surrogate pair"),
                ("causal", '{"body": "it"}', "line 2: has no key 'text'"),
                ("instruct", '{"prompt": "it", "response": " "}', "line 2: the response has no tokens"),
                ("instruct", '{"prompt": "it"}', "line 2: has no key 'response'"),
                ("instruct", '{"prompt": ["it"], "response": "bad"}', "line 2: the prompt must be a string")]:
            options = ["--template", "{prompt} {response}"] if task == "instruct" else []
            with self.subTest(says=says):
                self.assertIn(says, self.refusal(task, {"a.jsonl": good + row + "\n"}, *options))

    def test_options_of_other_tasks_are_refused(self):
        text = {"a.txt": "it"}
        self.assertIn("--label is for --task classify, not causal", self.refusal("causal", text, "--label", "x"))
        self.assertIn("--max-length is for --task classify", self.refusal("causal", text, "--max-length", "9"))
        self.assertIn("--template is for --task instruct", self.refusal("causal", text, "--template", "x"))
        self.assertIn("each once", self.refusal("instruct", {"a.jsonl": ""}, "--template", "{response}{prompt}"))
        self.assertIn("needs --text COLUMN and --label COLUMN", self.refusal("classify", text))
        self.assertIn("cannot tell the format", self.refusal("instruct", text, "--template", "{prompt}{response}"))


if __name__ == "__main__":
    unittest.main()
