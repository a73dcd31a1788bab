"""Writes token files, chooses the held-out records, prints the statistics."""
import array
import hashlib
import heapq
import json
import math
import os
import struct

from prepare_labels import IGNORED_LABEL

CUTS = (128, 256, 512)


def write_token_file(path, spool, begins, records, metadata, labels=None, prompts=None):
    """Copies the records' tokens out of the spool. The file appears only when it is complete.

    `labels` has one for each record, or `prompts` the number of each record's first tokens that have
    none, or the file has no labels.
    """
    offsets = array.array("q", [0])
    for record in records:
        offsets.append(offsets[-1] + begins[record + 1] - begins[record])
    tensors = [("offsets", "I64", len(offsets), 8)]
    if labels is not None:
        tensors.append(("labels", "I64", len(records), 8))
    if prompts is not None:
        tensors.append(("labels", "I32", offsets[-1], 4))
    tensors.append(("input_ids", "I32", offsets[-1], 4))
    header, at = {"__metadata__": metadata}, 0
    for name, dtype, count, size in tensors:
        header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [at, at + count * size]}
        at += count * size
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)

    def tokens(record, skipped=0):
        spool.seek(4 * (begins[record] + skipped))
        return spool.read(4 * (begins[record + 1] - begins[record] - skipped))

    partial = f"{path}.partial"
    try:
        with open(partial, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.write(offsets.tobytes())
            if labels is not None:
                out.write(array.array("q", (labels[record] for record in records)).tobytes())
            if prompts is not None:
                for record in records:
                    out.write(struct.pack("<i", IGNORED_LABEL) * prompts[record])
                    out.write(tokens(record, prompts[record]))
            for record in records:
                out.write(tokens(record))
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


def report(lengths, place):
    """`place(record)` says where a record comes from."""
    ordered = sorted(lengths)
    total = len(ordered)
    print(f"{total} records, {sum(ordered)} tokens")
    print(f"tokens a record: median {percentile(ordered, 0.5)}, 95th percentile "
          f"{percentile(ordered, 0.95)}, 99th percentile {percentile(ordered, 0.99)}, "
          f"maximum {ordered[-1]}")
    longest = heapq.nlargest(10, range(total), key=lambda record: (lengths[record], -record))
    print("longest records (counted from 0): " + ", ".join(f"{record} ({place(record)}, {lengths[record]} tokens)"
                                          for record in longest))
    cut = {limit: sum(length > limit for length in ordered) for limit in CUTS}
    print("cut at " + ", at ".join(f"{limit}: {100 * cut[limit] / total:.2f} %" for limit in CUTS))
