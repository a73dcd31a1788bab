"""Reads records out of TSV, CSV, JSONL and plain text files; every mistake names its line."""
import csv
import json
import pathlib


class InputError(Exception):
    """Something the user can correct; its text is all that is printed."""


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
            names = [*args.text, *([args.label] if args.label else [])]
            wanted = [column_index(path, name, header, width) for name in names]
            if header is not None:
                continue
        if len(fields) != width:
            raise InputError(f"{path}, line {number}: {len(fields)} fields, expected {width}")
        found = [fields[index] for index in wanted]
        yield number, found[:len(args.text)], found[-1] if args.label else None


def described(args, name):
    return f"the {name}" if args.task == "instruct" else "the text"


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
        for name in [*args.text, *([args.label] if args.label else [])]:
            if name not in row:
                raise InputError(f"{path}, line {number}: has no key '{name}'")
        texts = [row[name] for name in args.text]
        for name, text in zip(args.text, texts):
            if not isinstance(text, str):
                raise InputError(f"{path}, line {number}: {described(args, name)} must be a string")
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                raise InputError(f"{path}, line {number}: {described(args, name)} holds half of a "
                                 "surrogate pair, which is no character")
        if not args.label:
            yield number, texts, None
            continue
        label = row[args.label]
        if isinstance(label, bool) or not isinstance(label, (str, int, float)):
            raise InputError(f"{path}, line {number}: the label must be a string or a number, "
                             f"not {json.dumps(label)[:40]}")
        yield number, texts, label if isinstance(label, str) else repr(label)


def rows(path, args):
    """(line number, texts of the columns args.text, label or None) of every record."""
    kind = args.format or pathlib.Path(path).suffix.lstrip(".").lower()
    if kind in ("jsonl", "ndjson"):
        return json_rows(path, args)
    if kind in ("tsv", "csv"):
        return table_rows(path, args, kind)
    if kind == "txt" and args.task == "causal":
        return [(1, ["".join(line for _, line in text_lines(path))], None)]
    kinds = "tsv, csv, jsonl or txt" if args.task == "causal" else "tsv, csv or jsonl"
    raise InputError(f"{path}: cannot tell the format by the name; give --format {kinds}")
