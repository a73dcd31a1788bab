#!/usr/bin/env python3
"""Reads 10,605 rated movie-review sentences out of the source archive of vaderSentiment 2.5.

The archive (a .tar.gz) holds additional_resources/hutto_ICWSM_2014.tar.gz, and that holds
movieReviewSnippets_GroundTruth.txt: id, mean rating, text between tabs. Writes a TSV with the
columns id, label (1 when the rating is above 0, else 0) and text. Nothing is installed, unpacked
to disk or executed.

The text is read as UTF-8, line by line; a line that is not UTF-8 is read as Windows-1252, where
undefined bytes become U+FFFD, and the number of such lines is printed (release 2.5 has none).

example:
  pip download --no-deps --no-binary :all: vaderSentiment==2.5
  movie_reviews.py vaderSentiment-2.5.tar.gz reviews.tsv
"""
import argparse
import io
import math
import os
import sys
import tarfile

INNER = "additional_resources/hutto_ICWSM_2014.tar.gz"
FILE = "movieReviewSnippets_GroundTruth.txt"
REVIEWS = 10_605
LIMIT_BYTES = 64 << 20  # the real members have 1.7 and 1.4 MB


class ArchiveError(Exception):
    """The archive is not the one expected; its text is all that is printed."""


def member(archive, ending, where):
    """The bytes of the one regular file whose name ends so."""
    found = [item for item in archive if item.isfile() and ("/" + item.name).endswith("/" + ending)]
    if len(found) != 1:
        raise ArchiveError(f"{where}: holds {len(found)} files {ending}, expected 1")
    if found[0].size > LIMIT_BYTES:
        raise ArchiveError(f"{where}: {ending} has {found[0].size} bytes, more than {LIMIT_BYTES}")
    return archive.extractfile(found[0]).read()


def decode(line):
    """(text, whether it was not UTF-8)."""
    try:
        return line.decode("utf-8"), False
    except UnicodeDecodeError:
        return line.decode("cp1252", errors="replace"), True


def parse(data):
    """([(id, rating, text)], number of lines that are not UTF-8)."""
    reviews, seen, odd = [], set(), 0
    for number, raw in enumerate(data.split(b"\n"), 1):
        line, not_utf8 = decode(raw.rstrip(b"\r"))
        odd += not_utf8
        if not line:
            continue
        fields = line.split("\t")
        try:
            identity, rating, text = int(fields[0]), float(fields[1]), fields[2].strip()
        except (ValueError, IndexError):
            raise ArchiveError(f"{FILE}, line {number}: expected id, rating and text") from None
        if len(fields) != 3 or not text or not math.isfinite(rating) or identity in seen:
            raise ArchiveError(f"{FILE}, line {number}: expected id, rating and text, each id once")
        seen.add(identity)
        reviews.append((identity, rating, text))
    return reviews, odd


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", help="vaderSentiment-2.5.tar.gz")
    parser.add_argument("out", help="TSV file to write: id, label, text")
    args = parser.parse_args(arguments)
    try:
        with tarfile.open(args.archive, "r:gz") as outer:
            inner_bytes = member(outer, INNER, args.archive)
        with tarfile.open(fileobj=io.BytesIO(inner_bytes), mode="r:gz") as inner:
            reviews, odd = parse(member(inner, FILE, INNER))
        if len(reviews) != REVIEWS:
            raise ArchiveError(f"{FILE}: has {len(reviews)} reviews, expected {REVIEWS}")
        partial = args.out + ".partial"
        with open(partial, "w", encoding="utf-8", newline="\n") as out:
            out.write("id\tlabel\ttext\n")
            for identity, rating, text in reviews:
                out.write(f"{identity}\t{int(rating > 0)}\t{text}\n")
        os.replace(partial, args.out)
    except (ArchiveError, tarfile.TarError, EOFError) as error:
        sys.exit(f"movie_reviews: error: {error}; get the source archive of vaderSentiment 2.5 anew")
    except OSError as error:
        sys.exit(f"movie_reviews: error: {error.filename or args.archive}: {error.strerror or error}")
    positive = sum(rating > 0 for _, rating, _ in reviews)
    print(f"{args.out}: {len(reviews)} reviews, {positive} positive, {len(reviews) - positive} not; "
          f"{odd} lines were not UTF-8")


if __name__ == "__main__":
    main()
