#!/usr/bin/env python3
"""ullage-prepare: turns text (TSV, CSV, JSONL, plain) into a token file for `ullage train`."""
import argparse
import array
import json
import os
import sys
import tempfile

from prepare_forms import make_form
from prepare_labels import Labels
from prepare_output import held_out, report, write_token_file
from prepare_rows import InputError, rows
from prepare_text import ClassEncoder, DocumentEncoder, InstructionEncoder, TokenizerFiles

EXAMPLES = """\
tasks:
  classify  a text, or a pair, with a label; for encoders with a classifier
  causal    documents, each ended by the end-of-text token; for language models
  instruct  prompts with their responses: the model learns the responses only

input formats, by the name's ending or --format:
  .tsv    fields between tabs, no quoting
  .csv    fields between commas, quoted by "..."; see --delimiter
  .jsonl  one JSON object a line
  .txt    one document a file (causal only)

examples:
  ullage-prepare reviews.tsv --tokenizer model/ --text text --label label --out train.safetensors
      --eval-count 1000 --eval-out eval.safetensors
  ullage-prepare pairs.jsonl --tokenizer model/ --text premise,hypothesis --label gold
      --max-length 128 --out train.safetensors
  ullage-prepare ratings.csv --no-header --tokenizer tokenizer.json --text 3 --label 2
      --label-threshold 0 --out train.safetensors
  ullage-prepare --task causal books/*.txt pages.jsonl --tokenizer model/ --out train.safetensors
  ullage-prepare --task instruct questions.jsonl --tokenizer model/ --prompt question
      --response answer --out train.safetensors

The token file is read by `ullage train --train FILE`. Records longer than --max-length of *that*
command are cut there; --max-length here cuts for good (needed for pairs of texts). Documents are
packed into sequences by `ullage train`, never cut here.
"""
BATCH = 1000  # texts given to the tokenizer at once; it spreads them over the cores


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="ullage-prepare", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", nargs="+",
                        help="TSV, CSV or JSONL file, UTF-8; read as a stream. Causal and instruct take several")
    parser.add_argument("--task", choices=("classify", "causal", "instruct"), default="classify",
                        help="what the model is to learn (default classify)")
    parser.add_argument("--tokenizer", required=True, metavar="PATH",
                        help="tokenizer.json, or the folder of a Hugging Face model that holds it")
    parser.add_argument("--text", metavar="COLUMN[,COLUMN2]",
                        help="column of the text; classify: two columns are joined as a pair of texts, for which "
                             "the token file keeps no segment ids; causal: one column (default text)")
    parser.add_argument("--label", metavar="COLUMN",
                        help="classify: column of the label: whole numbers are kept, anything else is numbered "
                             "in sorted order and the names are recorded")
    parser.add_argument("--label-threshold", type=float, metavar="X",
                        help="classify: the label is a number; class 1 when it is above X, else 0")
    parser.add_argument("--prompt", metavar="COLUMN", help="instruct: column of the prompt (default prompt)")
    parser.add_argument("--response", metavar="COLUMN", help="instruct: column of the response (default response)")
    parser.add_argument("--template", metavar="TEXT",
                        help="instruct: how the two become one text, e.g. '{prompt}\\n{response}' (default: the "
                             "chat template in the tokenizer's folder)")
    parser.add_argument("--eos-token", metavar="TOKEN",
                        help="causal, instruct: token that ends a document (default: the tokenizer's)")
    parser.add_argument("--out", required=True, metavar="FILE", help="token file to write")
    parser.add_argument("--eval-count", type=int, default=0, metavar="N",
                        help="hold out N records, chosen at random (default 0)")
    parser.add_argument("--eval-out", metavar="FILE", help="token file for the held-out records")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of held-out records (default 0)")
    parser.add_argument("--max-length", type=int, metavar="TOKENS",
                        help="classify: cut records to this many tokens, special ones included (default: no cut)")
    parser.add_argument("--pad-token", metavar="TOKEN", help="padding token (default: the tokenizer's)")
    parser.add_argument("--format", choices=("tsv", "csv", "jsonl", "txt"), help="default: by the name's ending")
    parser.add_argument("--delimiter", metavar="CHAR", help="between fields (default: tab or comma)")
    parser.add_argument("--no-header", action="store_true",
                        help="the first line is data; columns are numbers, counted from 1")
    args = parser.parse_args(arguments)
    check_task(parser, args)
    if args.delimiter is not None:
        args.delimiter = args.delimiter.replace("\\t", "\t")
        if len(args.delimiter) != 1:
            parser.error("--delimiter takes one character")
    if args.eval_count < 0 or (args.eval_count > 0) != (args.eval_out is not None):
        parser.error("--eval-count N (from 1) and --eval-out FILE belong together")
    if args.max_length is not None and args.max_length < 4:
        parser.error("--max-length must be at least 4")
    outputs = [os.path.realpath(path) for path in (args.out, args.eval_out, *args.input) if path]
    if len(set(outputs)) != len(outputs):
        parser.error("input, --out and --eval-out must be different files")
    return args


def check_task(parser, args):
    """Refuses the options of other tasks and fills args.text, the columns of the texts."""
    of_task = {"text": ("classify", "causal"), "label": ("classify",), "label_threshold": ("classify",),
               "max_length": ("classify",), "prompt": ("instruct",), "response": ("instruct",),
               "template": ("instruct",), "eos_token": ("causal", "instruct")}
    for option, tasks in of_task.items():
        if getattr(args, option) is not None and args.task not in tasks:
            parser.error(f"--{option.replace('_', '-')} is for --task {' and '.join(tasks)}, not {args.task}")
    if args.task == "instruct":
        args.text = [args.prompt or "prompt", args.response or "response"]
        return
    if args.task == "causal":
        args.text = [args.text or "text"]
        return
    if args.text is None or args.label is None:
        parser.error("--task classify needs --text COLUMN and --label COLUMN")
    args.text = args.text.split(",")
    if len(args.text) > 2:
        parser.error("--text takes one or two columns")
    if len(args.input) > 1:
        parser.error("--task classify takes one input file")


def make_encoder(args, files):
    if args.task == "classify":
        return ClassEncoder(files, args.max_length, args.pad_token)
    if args.task == "causal":
        return DocumentEncoder(files, args.pad_token, args.eos_token)
    return InstructionEncoder(files, args.pad_token, args.eos_token, make_form(files, args.template))


class Records:
    """What memory holds of the records, a few numbers each; their token ids go to the spool."""

    def __init__(self, args, encoder, spool):
        self.args, self.encoder, self.spool = args, encoder, spool
        self.begins = array.array("q", [0])
        self.lengths = array.array("q")  # before cutting
        self.prompts = array.array("q")  # tokens without a label
        self.files, self.lines = array.array("q"), array.array("q")
        self.waiting = []  # (file, line, texts)

    def add(self, file, line, texts):
        self.waiting.append((file, line, texts))
        if len(self.waiting) == BATCH:
            self.flush()

    def flush(self):
        encoded = self.encoder.encode([texts for _, _, texts in self.waiting])
        for (ids, length, prompt), (file, line, _) in zip(encoded, self.waiting):
            if not ids:
                raise InputError(f"{self.args.input[file]}, line {line}: the text has no tokens")
            if prompt == len(ids):
                raise InputError(f"{self.args.input[file]}, line {line}: the response has no tokens")
            self.spool.write(array.array("i", ids).tobytes())
            self.begins.append(self.begins[-1] + len(ids))
            self.lengths.append(length)
            self.prompts.append(prompt)
            self.files.append(file)
            self.lines.append(line)
        self.waiting = []

    def place(self, record):
        line = f"line {self.lines[record]}"
        return line if len(self.args.input) == 1 else f"{self.args.input[self.files[record]]}, {line}"

    def tokens(self, record):
        return self.begins[record + 1] - self.begins[record]


def run(args):
    files = TokenizerFiles(args.tokenizer)
    encoder = make_encoder(args, files)
    labels = Labels(args.label_threshold)
    folder = os.path.dirname(os.path.abspath(args.out))
    with tempfile.TemporaryFile(dir=folder) as spool:
        records = Records(args, encoder, spool)
        for file, path in enumerate(args.input):
            for number, texts, label in rows(path, args):
                if args.task == "classify":
                    labels.add(path, number, label)
                records.add(file, number, texts)
        if records.waiting:
            records.flush()
        total = len(records.lengths)
        if total == 0:
            raise InputError(f"{', '.join(args.input)}: holds no records")
        if args.eval_count >= total:
            raise InputError(f"--eval-count {args.eval_count} leaves nothing of {total} records to train on")
        metadata = {"format": "ullage-tokens", "version": "1", "tokenizer": files.name,
                    "tokenizer_sha256": files.sha256, "pad_token_id": str(encoder.pad_token_id)}
        extra, by_record, names = {}, None, []
        if args.task == "classify":
            by_record, num_labels, names = labels.finish(args.input[0])
            metadata |= {"num_labels": str(num_labels), "label_names": json.dumps(names, ensure_ascii=False)}
            extra["labels"] = by_record
        else:
            metadata["task"] = args.task
        if args.task == "instruct":
            extra["prompts"] = records.prompts
        evaluation = held_out(args.seed, args.eval_count, total)
        outputs = [(args.out, [r for r in range(total) if r not in evaluation])]
        if evaluation:
            outputs.append((args.eval_out, sorted(evaluation)))
        for path, chosen in outputs:
            write_token_file(path, spool, records.begins, chosen, metadata, **extra)
    report(records.lengths, records.place)
    if args.max_length:
        share = sum(length > args.max_length for length in records.lengths) / total
        print(f"cut to --max-length {args.max_length}: {100 * share:.2f} %")
    for path, chosen in outputs:
        print(f"{path}: " + (classes_line(chosen, by_record, names) if by_record is not None
                             else documents_line(chosen, records)))


def classes_line(chosen, by_record, names):
    counts = {}
    for record in chosen:
        counts[by_record[record]] = counts.get(by_record[record], 0) + 1
    shown = ", ".join(f"{names[label] if names and label >= 0 else label}: {counts[label]}"
                      for label in sorted(counts)[:20])
    return f"{len(chosen)} records ({shown}{', ...' if len(counts) > 20 else ''})"


def documents_line(chosen, records):
    tokens = sum(records.tokens(record) for record in chosen)
    line = f"{len(chosen)} documents, {tokens} tokens"
    if records.args.task == "causal":
        return line
    labelled = tokens - sum(records.prompts[record] for record in chosen)
    return f"{line}, {100 * labelled / tokens:.1f} % of them of responses"


def main(arguments=None):
    args = parse_arguments(arguments)
    if sys.byteorder != "little":
        sys.exit("ullage-prepare: error: only little-endian machines are supported")
    try:
        run(args)
    except InputError as error:
        sys.exit(f"ullage-prepare: error: {error}")
    except OSError as error:
        sys.exit(f"ullage-prepare: error: {error.filename or args.out}: {error.strerror}")


if __name__ == "__main__":
    main()
