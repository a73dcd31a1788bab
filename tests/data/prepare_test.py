"""Tests of ullage-prepare: token ids, labels, hold-out, report, and what bad input gets."""
import contextlib
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import safetensors
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools/prepare"
sys.path.insert(0, str(TOOLS))
import ullage_prepare  # noqa: E402

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "very", "film"]


def make_tokenizer(path):
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    # Left on by an earlier use, as in many published files: must not cut or pad anything.
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]", length=16)
    tokenizer.save(str(path))


class Prepared:
    def __init__(self, path):
        with safetensors.safe_open(path, "np") as file:
            self.metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        assert {name: str(t.dtype) for name, t in tensors.items()} == {
            "input_ids": "int32", "offsets": "int64", "labels": "int64"}
        offsets = tensors["offsets"]
        assert offsets[0] == 0 and offsets[-1] == len(tensors["input_ids"])
        self.labels = tensors["labels"].tolist()
        self.records = [tensors["input_ids"][a:b].tolist() for a, b in zip(offsets[:-1], offsets[1:])]


class PrepareTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        (self.dir / "tiny").mkdir()
        make_tokenizer(self.dir / "tiny/tokenizer.json")

    def write(self, name, content):
        data = content if isinstance(content, bytes) else content.encode()
        (self.dir / name).write_bytes(data)
        return str(self.dir / name)

    def prepare(self, name, content, *options, text="text", label="label"):
        """The token file and what was printed."""
        path = self.write(name, content)
        out = str(self.dir / "out.safetensors")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            ullage_prepare.main([path, "--tokenizer", str(self.dir / "tiny"), "--text", text,
                                 "--label", label, "--out", out, *options])
        return Prepared(out), printed.getvalue()

    def refusal(self, name, content, *options, **columns):
        with self.assertRaises(SystemExit) as caught, contextlib.redirect_stderr(io.StringIO()) as stderr:
            self.prepare(name, content, *options, **columns)
        self.assertFalse((self.dir / "out.safetensors").exists())
        self.assertEqual([p.name for p in self.dir.iterdir() if "partial" in p.name], [])
        return f"{caught.exception.code} {stderr.getvalue()}"

    def test_tsv_gives_ids_labels_and_metadata(self):
        made, _ = self.prepare("a.tsv", 'label\ttext\n1\tGood "film\r\n0\tvery very bad\n-100\tother\n')
        self.assertEqual(made.records, [[2, 4, 1, 7, 3], [2, 6, 6, 5, 3], [2, 1, 3]])
        self.assertEqual(made.labels, [1, 0, -100])
        digest = hashlib.sha256((self.dir / "tiny/tokenizer.json").read_bytes()).hexdigest()
        self.assertEqual(made.metadata, {
            "format": "ullage-tokens", "version": "1", "tokenizer": "tiny", "tokenizer_sha256": digest,
            "pad_token_id": "0", "num_labels": "2", "label_names": "[]"})

    def test_csv_understands_quotes_and_lines_inside_them(self):
        made, _ = self.prepare("a.csv", '\ufefftext,label\n"good, ""very""\nbad",x\nfilm,y\n')
        self.assertEqual(made.records, [[2, 4, 1, 1, 6, 1, 5, 3], [2, 7, 3]])

    def test_jsonl_takes_keys(self):
        made, _ = self.prepare("a.jsonl", '{"text": "good", "label": 2, "x": []}\n\n'
                                          '{"label": 0, "text": "\\u0062ad"}\n')
        self.assertEqual((made.records, made.labels), ([[2, 4, 3], [2, 5, 3]], [2, 0]))
        self.assertEqual(made.metadata["num_labels"], "3")

    def test_string_labels_are_numbered_in_sorted_order(self):
        made, printed = self.prepare("a.tsv", "label\ttext\nzoo\tgood\nant\tbad\nzoo\tfilm\nbee\tfilm\n")
        self.assertEqual(made.labels, [2, 0, 2, 1])
        self.assertEqual(json.loads(made.metadata["label_names"]), ["ant", "bee", "zoo"])
        self.assertIn("4 records (ant: 1, bee: 1, zoo: 2)", printed)

    def test_threshold_makes_two_classes(self):
        made, _ = self.prepare("a.tsv", "0.5\tgood\n0\tbad\n-1e3\tbad\n", "--no-header",
                               "--label-threshold", "0", text="2", label="1")
        self.assertEqual(made.labels, [1, 0, 0])
        self.assertEqual(json.loads(made.metadata["label_names"]), ["<= 0", "> 0"])

    def test_pairs_are_joined_and_cut_by_the_tokenizer(self):
        rows = "a,b,label\ngood film good film,bad,0\ngood,bad,1\n"
        made, _ = self.prepare("a.csv", rows, text="a,b")
        self.assertEqual(made.records, [[2, 4, 7, 4, 7, 3, 5, 3], [2, 4, 3, 5, 3]])
        made, printed = self.prepare("a.csv", rows, "--max-length", "6", text="a,b")
        self.assertEqual(made.records, [[2, 4, 7, 3, 5, 3], [2, 4, 3, 5, 3]])
        self.assertIn("cut to --max-length 6: 50.00 %", printed)

    def test_hold_out_is_random_reproducible_and_loses_nothing(self):
        rows = "label\ttext\n" + "".join(f"{i % 5}\t{'good ' * (i + 1)}\n" for i in range(60))
        eval_out = str(self.dir / "eval.safetensors")

        def split(seed):
            made, _ = self.prepare("a.tsv", rows, "--eval-count", "20", "--eval-out", eval_out,
                                   "--seed", str(seed))
            return ([len(r) - 3 for r in made.records], [len(r) - 3 for r in Prepared(eval_out).records])
        train, held = split(1)
        self.assertEqual((len(train), len(held)), (40, 20))
        self.assertEqual(sorted(train + held), list(range(60)))
        self.assertEqual((train, held), (sorted(train), sorted(held)))  # in the order of the file
        self.assertNotEqual(held, list(range(40, 60)))
        self.assertEqual((train, held), split(1))
        self.assertNotEqual(held, split(2)[1])
        self.assertEqual(Prepared(eval_out).metadata["num_labels"], "5")
        self.assertEqual(held[:5], [4, 7, 8, 11, 17])  # golden: never changes between versions

    def test_report_names_lengths_and_longest_records(self):
        rows = "label\ttext\n" + "".join(f"0\t{'good ' * n}\n" for n in range(1, 99)) \
            + f"0\t{'good ' * 300}\n0\t{'good ' * 600}\n"
        _, printed = self.prepare("a.tsv", rows)
        self.assertIn("100 records, 5951 tokens", printed)  # 98 * 99 / 2 + 300 + 600 + 2 * 100
        self.assertIn("median 52, 95th percentile 97, 99th percentile 302, maximum 602", printed)
        self.assertIn("99 (line 101, 602 tokens), 98 (line 100, 302 tokens), 97 (line 99, 100 tokens)", printed)
        self.assertIn("cut at 128: 2.00 %, at 256: 2.00 %, at 512: 1.00 %", printed)

    def test_bad_rows_name_their_line(self):
        head = "label\ttext\n0\tgood\n"
        for name, content, says in [
                ("a.tsv", head + "1\n", "line 3: 1 fields, expected 2"),
                ("a.tsv", head + "1\tgood\tbad\n", "line 3: 3 fields"),
                ("a.tsv", head + "\tgood\n", "line 3: the label is empty"),
                ("a.tsv", head + "-3\tgood\n", "line 3: label -3 is not in"),
                ("a.tsv", head + "7000000\tgood\n", "line 3: label 7000000 is not in"),
                ("a.tsv", head.encode() + b"1\tg\xffod\n", "line 3: not UTF-8 at byte 4"),
                ("a.tsv", head + "1\tg\0od\n", "line 3: holds a NUL"),
                ("a.tsv", "label\tother\n", "column 'text' occurs 0 times"),
                ("a.tsv", "text\ttext\tlabel\n", "column 'text' occurs 2 times"),
                ("a.tsv", "label\ttext\n", "holds no records"),
                ("a.tsv", "", "holds no records"),
                ("a.csv", 'text,label\ngood,0\n"bad,0\n', "row that begins in line 3"),
                ("a.jsonl", '{"text": "x", "label": 1}\n{"text"\n', "line 2: no JSON"),
                ("a.jsonl", "[1]\n", "line 1: expected an object"),
                ("a.jsonl", "[" * 100_000 + "\n", "line 1: no JSON"),
                ("a.jsonl", '{"text": "x"}\n', "line 1: has no key 'label'"),
                ("a.jsonl", '{"text": 3, "label": 1}\n', "line 1: the text must be a string"),
                ("a.jsonl", '{"text": "x", "label": null}\n', "line 1: the label must be"),
                ("a.txt", "x\n", "cannot tell the format")]:
            with self.subTest(says=says):
                message = self.refusal(name, content)
                self.assertIn(says, message)

    def test_bad_options_are_named(self):
        rows = "label\ttext\n0\tgood\n1\tbad\n"
        other = str(self.dir / "eval.safetensors")
        self.assertIn("belong together", self.refusal("a.tsv", rows, "--eval-count", "1"))
        self.assertIn("leaves nothing of 2", self.refusal("a.tsv", rows, "--eval-count", "2", "--eval-out", other))
        self.assertIn("has no token '<p>'", self.refusal("a.tsv", rows, "--pad-token", "<p>"))
        self.assertIn("different files", self.refusal("a.tsv", rows, "--eval-count", "1", "--eval-out",
                                                      str(self.dir / "out.safetensors")))
        self.assertIn("number from 1 to 2", self.refusal("a.tsv", rows, "--no-header", text="3", label="1"))
        self.assertIn("is no number", self.refusal("a.tsv", "label\ttext\nx\tgood\n", "--label-threshold", "1"))
        self.write("tiny/tokenizer.json", "{}")
        self.assertIn("no tokenizer", self.refusal("a.tsv", rows))
        os.remove(self.dir / "tiny/tokenizer.json")
        self.assertIn("no such file", self.refusal("a.tsv", rows))

    def test_an_empty_record_is_refused(self):
        tokenizer = Tokenizer.from_file(str(self.dir / "tiny/tokenizer.json"))
        tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
        tokenizer.save(str(self.dir / "tiny/tokenizer.json"))
        self.assertIn("line 3: the text has no tokens", self.refusal("a.tsv", "label\ttext\n0\tgood\n0\t\n"))

    def test_more_texts_than_one_batch_keep_their_order(self):
        count = 2 * ullage_prepare.BATCH + 7
        made, _ = self.prepare("a.tsv", "label\ttext\n" + "".join(
            f"{i % 3}\t{'good ' * (i % 11)}\n" for i in range(count)))
        self.assertEqual([len(r) for r in made.records], [2 + i % 11 for i in range(count)])
        self.assertEqual(made.labels, [i % 3 for i in range(count)])

    def test_the_command_runs_through_a_link(self):
        link = self.dir / "bin"
        link.mkdir()
        (link / "ullage-prepare").symlink_to(TOOLS / "ullage-prepare")
        (link / "python").symlink_to(sys.executable)
        done = subprocess.run([link / "ullage-prepare", "--help"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--eval-count 1000 --eval-out eval.safetensors", done.stdout)


if __name__ == "__main__":
    unittest.main()
