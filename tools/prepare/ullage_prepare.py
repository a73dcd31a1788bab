#!/usr/bin/env python3
"""ullage-prepare: turns labelled text (TSV, CSV, JSONL) into a token file for `ullage train`."""
import argparse
import array
import csv
import hashlib
import heapq
import json
import math
import os
import pathlib
import re
import struct
import sys
import tempfile

EXAMPLES = """\
input formats, by the name's ending or --format:
  .tsv    fields between tabs, no quoting
  .csv    fields between commas, quoted by "..."; see --delimiter
  .jsonl  one JSON object a line

examples:
  ullage-prepare reviews.tsv --tokenizer model/ --text text --label label --out train.safetensors
      --eval-count 1000 --eval-out eval.safetensors
  ullage-prepare pairs.jsonl --tokenizer model/ --text premise,hypothesis --label gold
      --max-length 128 --out train.safetensors
  ullage-prepare ratings.csv --no-header --tokenizer tokenizer.json --text 3 --label 2
      --label-threshold 0 --out train.safetensors

The token file is read by `ullage train --train FILE`. Records longer than --max-length of *that*
command are cut there; --max-length here cuts for good (needed for pairs of texts).
"""
IGNORED_LABEL = -100
MAX_LABEL = 1_000_000  # more classes than any classifier has: the column is no label
CUTS = (128, 256, 512)
BATCH = 1000  # texts given to the tokenizer at once; it spreads them over the cores


class InputError(Exception):
    """Something the user can correct; its text is all that is printed."""


# ---- rows ------------------------------------------------------------------------------------


def text_lines(path):
    """The decoded lines of a file with their numbers; bad UTF-8 is an error with its line."""
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}, line {number}: not UTF-8 at byte {error.start + 1} of the "
                                 "line; convert the file, e.g. with iconv -f latin1 -t utf-8") from None
            if number == 1:
                text = text.removeprefix("\ufeff")
            if "\0" in text:
                raise InputError(f"{path}, line {number}: holds a NUL character; this is no text file")
            yield number, text


def split_rows(path, kind, delimiter):
    """(line number, fields) of a TSV or CSV."""
    if kind == "tsv":
        for number, line in text_lines(path):
            line = line.rstrip("\r\n")
            if line:
                yield number, line.split(delimiter)
        return
    csv.field_size_limit(1 << 24)
    reader = csv.reader((line for _, line in text_lines(path)), delimiter=delimiter, strict=True)
    first = 1
    try:
        for fields in reader:
            if fields:
                yield first, fields
            first = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}, row that begins in line {first}: {error}") from None


def column_index(path, name, header, width):
    if header is not None:
        if header.count(name) != 1:
            raise InputError(f"{path}, line 1: column '{name}' occurs {header.count(name)} times among "
                             f"{', '.join(header)}; with --no-header columns are numbers from 1")
        return header.index(name)
    if not name.isdecimal() or not 1 <= int(name) <= width:
        raise InputError(f"{path}: with --no-header a column is a number from 1 to {width}, not '{name}'")
    return int(name) - 1


def table_rows(path, args, kind):
    delimiter = args.delimiter or ("\t" if kind == "tsv" else ",")
    header, wanted, width = None, None, None
    for number, fields in split_rows(path, kind, delimiter):
        if wanted is None:
            width = len(fields)
            if not args.no_header:
                header = fields
            wanted = [column_index(path, name, header, width) for name in [*args.text, args.label]]
            if header is not None:
                continue
        if len(fields) != width:
            raise InputError(f"{path}, line {number}: {len(fields)} fields, expected {width}")
        *texts, label = (fields[index] for index in wanted)
        yield number, texts, label


def json_rows(path, args):
    for number, line in text_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: no JSON: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: expected an object, found {type(row).__name__}")
        for name in [*args.text, args.label]:
            if name not in row:
                raise InputError(f"{path}, line {number}: has no key '{name}'")
        texts = [row[name] for name in args.text]
        if not all(isinstance(text, str) for text in texts):
            raise InputError(f"{path}, line {number}: the text must be a string")
        label = row[args.label]
        if isinstance(label, bool) or not isinstance(label, (str, int, float)):
            raise InputError(f"{path}, line {number}: the label must be a string or a number, "
                             f"not {json.dumps(label)[:40]}")
        yield number, texts, label if isinstance(label, str) else repr(label)


def rows(path, args):
    kind = args.format or pathlib.Path(path).suffix.lstrip(".").lower()
    if kind in ("jsonl", "ndjson"):
        return json_rows(path, args)
    if kind in ("tsv", "csv"):
        return table_rows(path, args, kind)
    raise InputError(f"{path}: cannot tell the format by the name; give --format tsv, csv or jsonl")


# ---- labels ----------------------------------------------------------------------------------


class Labels:
    """Collects labels; their numbers are known only when all have been seen."""

    def __init__(self, threshold):
        self.threshold = threshold
        self.codes = array.array("q")  # one a record: a final label, or an index into `values`
        self.values = {}  # distinct text -> index, in order of appearance
        self.lines = []  # the line each distinct text was first seen in

    def add(self, path, number, text):
        if self.threshold is None:
            text = text.strip()
            if not text:
                raise InputError(f"{path}, line {number}: the label is empty")
            if text not in self.values:
                self.values[text] = len(self.values)
                self.lines.append(number)
            self.codes.append(self.values[text])
            return
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{path}, line {number}: label '{text[:40]}' is no number, "
                             "as --label-threshold needs")
        self.codes.append(int(value > self.threshold))

    def finish(self, path):
        """(labels by record, num_labels, names)."""
        if self.threshold is not None:
            return self.codes, 2, [f"<= {self.threshold:g}", f"> {self.threshold:g}"]
        if all(re.fullmatch(r"[+-]?\d+", text) for text in self.values):
            final = [int(text) for text in self.values]
            for value, line in zip(final, self.lines):
                if value != IGNORED_LABEL and not 0 <= value < MAX_LABEL:
                    raise InputError(f"{path}, line {line}: label {value} is not in 0 .. "
                                     f"{MAX_LABEL - 1} (or {IGNORED_LABEL}: counts nowhere); for a "
                                     "rating use --label-threshold")
            names, count = [], max([0, *final]) + 1
        else:
            names = sorted(self.values)
            place = {text: index for index, text in enumerate(names)}
            final, count = [place[text] for text in self.values], len(names)
            if count > MAX_LABEL:
                raise InputError(f"{path}: {count} different labels; the column is no label")
        for record, code in enumerate(self.codes):
            self.codes[record] = final[code]
        return self.codes, count, names


# ---- tokenizer -------------------------------------------------------------------------------


class TextEncoder:
    def __init__(self, place, max_length, pad_token):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise InputError("the Python package 'tokenizers' is missing: pip install tokenizers") from None
        path = pathlib.Path(place)
        if path.is_dir():
            path /= "tokenizer.json"
        if not path.is_file():
            raise InputError(f"{path}: no such file; --tokenizer takes a tokenizer.json or its folder")
        data = path.read_bytes()
        try:
            self.whole = Tokenizer.from_buffer(data)
            self.cut = Tokenizer.from_buffer(data)
        except Exception as error:  # the package raises plain Exception
            raise InputError(f"{path}: no tokenizer: {error}") from None
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.name = path.resolve().parent.name if path.name == "tokenizer.json" else path.stem
        self.pad_token_id = self.find_pad(path, pad_token)
        self.max_length = max_length
        # Files often come with the limits of some earlier use switched on.
        self.whole.no_truncation()
        self.whole.no_padding()
        self.cut.no_padding()
        if max_length:
            self.cut.enable_truncation(max_length)

    def find_pad(self, path, pad_token):
        if pad_token is not None:
            found = self.whole.token_to_id(pad_token)
            if found is None:
                raise InputError(f"{path}: has no token '{pad_token}'")
            return found
        if self.whole.padding:
            return self.whole.padding["pad_id"]
        for token in ("[PAD]", "<pad>", "<|endoftext|>", "</s>"):
            found = self.whole.token_to_id(token)
            if found is not None:
                return found
        raise InputError(f"{path}: names no padding token; give --pad-token TOKEN")

    def encode(self, texts):
        """(token ids, number of tokens before cutting) of each text or pair."""
        items = [tuple(text) if len(text) == 2 else text[0] for text in texts]
        for item, encoding in zip(items, self.whole.encode_batch(items)):
            ids = encoding.ids
            length = len(ids)
            if self.max_length and length > self.max_length:
                pair = item if isinstance(item, tuple) else (item,)
                ids = self.cut.encode(*pair).ids
            yield ids, length


# ---- output ----------------------------------------------------------------------------------


def write_token_file(path, spool, begins, records, labels, metadata):
    """Copies the records' tokens out of the spool. The file appears only when it is complete."""
    offsets = array.array("q", [0])
    for record in records:
        offsets.append(offsets[-1] + begins[record + 1] - begins[record])
    chosen = array.array("q", (labels[record] for record in records))
    header, at = {"__metadata__": metadata}, 0
    for name, dtype, count, size in (("offsets", "I64", len(offsets), 8), ("labels", "I64", len(chosen), 8),
                                     ("input_ids", "I32", offsets[-1], 4)):
        header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [at, at + count * size]}
        at += count * size
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    partial = f"{path}.partial"
    try:
        with open(partial, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.write(offsets.tobytes())
            out.write(chosen.tobytes())
            for record in records:
                spool.seek(4 * begins[record])
                out.write(spool.read(4 * (begins[record + 1] - begins[record])))
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, path)
    except OSError:
        if os.path.exists(partial):
            os.remove(partial)
        raise


def held_out(seed, count, total):
    """The `count` records of the smallest keys: the same for a seed with every Python version."""
    def key(record):
        return hashlib.sha256(f"{seed}:{record}".encode()).digest()
    return set(heapq.nsmallest(count, range(total), key=key))


def percentile(ordered, share):
    """The smallest length that at least `share` of the records do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def report(lengths, lines):
    ordered = sorted(lengths)
    total = len(ordered)
    print(f"{total} records, {sum(ordered)} tokens")
    print(f"tokens a record: median {percentile(ordered, 0.5)}, 95th percentile "
          f"{percentile(ordered, 0.95)}, 99th percentile {percentile(ordered, 0.99)}, "
          f"maximum {ordered[-1]}")
    longest = heapq.nlargest(10, range(total), key=lambda record: (lengths[record], -record))
    print("longest records (counted from 0): " + ", ".join(f"{record} (line {lines[record]}, {lengths[record]} tokens)"
                                          for record in longest))
    cut = {limit: sum(length > limit for length in ordered) for limit in CUTS}
    print("cut at " + ", at ".join(f"{limit}: {100 * cut[limit] / total:.2f} %" for limit in CUTS))


# ---- command line ----------------------------------------------------------------------------


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="ullage-prepare", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="TSV, CSV or JSONL file, UTF-8; read as a stream")
    parser.add_argument("--tokenizer", required=True, metavar="PATH",
                        help="tokenizer.json, or the folder of a Hugging Face model that holds it")
    parser.add_argument("--text", required=True, metavar="COLUMN[,COLUMN2]",
                        help="column of the text; two columns are joined as a pair of texts, for which "
                             "the token file keeps no segment ids")
    parser.add_argument("--label", required=True, metavar="COLUMN",
                        help="column of the label: whole numbers are kept, anything else is numbered in "
                             "sorted order and the names are recorded")
    parser.add_argument("--label-threshold", type=float, metavar="X",
                        help="the label is a number; class 1 when it is above X, else 0")
    parser.add_argument("--out", required=True, metavar="FILE", help="token file to write")
    parser.add_argument("--eval-count", type=int, default=0, metavar="N",
                        help="hold out N records, chosen at random (default 0)")
    parser.add_argument("--eval-out", metavar="FILE", help="token file for the held-out records")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of held-out records (default 0)")
    parser.add_argument("--max-length", type=int, metavar="TOKENS",
                        help="cut records to this many tokens, special ones included (default: no cut)")
    parser.add_argument("--pad-token", metavar="TOKEN", help="padding token (default: the tokenizer's)")
    parser.add_argument("--format", choices=("tsv", "csv", "jsonl"), help="default: by the name's ending")
    parser.add_argument("--delimiter", metavar="CHAR", help="between fields (default: tab or comma)")
    parser.add_argument("--no-header", action="store_true",
                        help="the first line is data; columns are numbers, counted from 1")
    args = parser.parse_args(arguments)
    args.text = args.text.split(",")
    if len(args.text) > 2:
        parser.error("--text takes one or two columns")
    if args.delimiter is not None:
        args.delimiter = args.delimiter.replace("\\t", "\t")
        if len(args.delimiter) != 1:
            parser.error("--delimiter takes one character")
    if args.eval_count < 0 or (args.eval_count > 0) != (args.eval_out is not None):
        parser.error("--eval-count N (from 1) and --eval-out FILE belong together")
    if args.max_length is not None and args.max_length < 4:
        parser.error("--max-length must be at least 4")
    outputs = [os.path.realpath(path) for path in (args.out, args.eval_out, args.input) if path]
    if len(set(outputs)) != len(outputs):
        parser.error("input, --out and --eval-out must be different files")
    return args


def run(args):
    encoder = TextEncoder(args.tokenizer, args.max_length, args.pad_token)
    labels = Labels(args.label_threshold)
    begins, lengths, lines = array.array("q", [0]), array.array("q"), array.array("q")
    folder = os.path.dirname(os.path.abspath(args.out))
    with tempfile.TemporaryFile(dir=folder) as spool:  # token ids; memory holds a few numbers a record
        def flush(texts, numbers):
            for (ids, length), number in zip(encoder.encode(texts), numbers):
                if not ids:
                    raise InputError(f"{args.input}, line {number}: the text has no tokens")
                spool.write(array.array("i", ids).tobytes())
                begins.append(begins[-1] + len(ids))
                lengths.append(length)
                lines.append(number)

        texts, numbers = [], []
        for number, text, label in rows(args.input, args):
            labels.add(args.input, number, label)
            texts.append(text)
            numbers.append(number)
            if len(texts) == BATCH:
                flush(texts, numbers)
                texts, numbers = [], []
        if texts:
            flush(texts, numbers)
        total = len(lengths)
        if total == 0:
            raise InputError(f"{args.input}: holds no records")
        if args.eval_count >= total:
            raise InputError(f"--eval-count {args.eval_count} leaves nothing of {total} records to train on")
        by_record, num_labels, names = labels.finish(args.input)
        metadata = {"format": "ullage-tokens", "version": "1", "tokenizer": encoder.name,
                    "tokenizer_sha256": encoder.sha256, "pad_token_id": str(encoder.pad_token_id),
                    "num_labels": str(num_labels), "label_names": json.dumps(names, ensure_ascii=False)}
        evaluation = held_out(args.seed, args.eval_count, total)
        outputs = [(args.out, [r for r in range(total) if r not in evaluation])]
        if evaluation:
            outputs.append((args.eval_out, sorted(evaluation)))
        for path, records in outputs:
            write_token_file(path, spool, begins, records, by_record, metadata)
    report(lengths, lines)
    if args.max_length:
        share = sum(length > args.max_length for length in lengths) / total
        print(f"cut to --max-length {args.max_length}: {100 * share:.2f} %")
    for path, records in outputs:
        counts = {}
        for record in records:
            counts[by_record[record]] = counts.get(by_record[record], 0) + 1
        shown = ", ".join(f"{names[label] if names and label >= 0 else label}: {counts[label]}"
                          for label in sorted(counts)[:20])
        print(f"{path}: {len(records)} records ({shown}{', ...' if len(counts) > 20 else ''})")


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
