"""Guards on an adapter's files: the bounded header reader, shards and listings, and the process that validates."""

from __future__ import annotations

from tests.mutants.guard import Guard

HEADER = "platform/lorry/adapters/header.py"
CHILD = "platform/lorry/adapters/sandbox/child.py"
SANDBOX = "platform/lorry/adapters/sandbox/examine.py"
HOSTILE = "tests/unit/adapters/test_header.py::test_hostile_file_is_refused"
TEST_HEADER = "tests/unit/adapters/test_header.py"
TEST_SANDBOX = "tests/unit/adapters/test_sandbox.py"

GUARDS = (
    # What the header says.
    Guard(
        "header_keys_are_there_once",
        HEADER,
        "        if len(found) != len(items):\n",
        "        if False:\n",
        (f"{HOSTILE}[duplicate tensor]", f"{HOSTILE}[duplicate inner key]"),
    ),
    Guard(
        "tensors_do_not_overlap",
        HEADER,
        "        if info.begin != at:\n",
        "        if info.begin > at:\n",
        (f"{HOSTILE}[overlap]",),
    ),
    Guard(
        "tensors_leave_no_hole",
        HEADER,
        "        if info.begin != at:\n",
        "        if info.begin < at:\n",
        (f"{HOSTILE}[hole]",),
    ),
    Guard(
        "no_byte_is_nobody_s",
        HEADER,
        "    if data_begin + at != size:\n",
        "    if data_begin + at > size:\n",
        (f"{HOSTILE}[bytes after the end]",),
    ),
    Guard(
        "shape_and_offsets_agree",
        HEADER,
        "    if end - begin != want:\n",
        "    if False:\n",
        (f"{HOSTILE}[shape against bytes]",),
    ),
    Guard(
        "names_have_a_grammar",
        HEADER,
        '    if not _NAME.match(name) or ".." in name:\n',
        '    if ".." in name:\n',
        (f"{HOSTILE}[control character]", f"{HOSTILE}[long name]"),
    ),
    Guard(
        "names_have_no_double_dots",
        HEADER,
        '    if not _NAME.match(name) or ".." in name:\n',
        "    if not _NAME.match(name):\n",
        (f"{HOSTILE}[double dots]",),
    ),
    Guard(
        "dtypes_are_those_served",
        HEADER,
        "    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:\n",
        "    if not isinstance(dtype, str):\n",
        (f"{HOSTILE}[dtype F64]",),
    ),
    # How large a file may be, and what may be opened.
    Guard(
        "header_is_bounded",
        HEADER,
        "    if length > limits.header_bytes:\n",
        "    if False:\n",
        (f"{HOSTILE}[header over the limit]",),
    ),
    Guard(
        "tensors_are_bounded",
        HEADER,
        "    if len(header) > limits.tensors:\n",
        "    if False:\n",
        (f"{TEST_HEADER}::test_too_many_tensors",),
    ),
    Guard(
        "files_are_bounded",
        HEADER,
        "    if size > limits.file_bytes:\n",
        "    if False:\n",
        (f"{TEST_HEADER}::test_sizes_are_bounded_before_anything_is_read",),
    ),
    Guard(
        "json_is_shallow",
        HEADER,
        "        if depth > max_depth:\n",
        "        if False:\n",
        (f"{HOSTILE}[deep nesting]",),
    ),
    Guard(
        "pickles_are_known_by_their_bytes",
        HEADER,
        "    refuse_pickle(name, head)\n",
        "",
        (f"{HOSTILE}[pickle]", f"{TEST_HEADER}::test_zip_under_a_safe_name"),
    ),
    Guard(
        "a_tensor_is_in_one_shard",
        "platform/lorry/adapters/shards.py",
        "                if twice is not None:\n",
        "                if False:\n",
        ("tests/unit/adapters/test_shards.py::test_a_tensor_in_two_shards",),
    ),
    # Kind 4: a name that is taken as a path.
    Guard(
        "listed_files_are_plain_names",
        "platform/lorry/adapters/disk.py",
        'any(not _FILE.match(n) or n in (".", "..") for n in names)',
        "not all(names)",
        ("tests/unit/adapters/test_tiers.py::test_paths_of_a_listing_are_plain_names",),
    ),
    # The process that reads them first.
    Guard(
        "the_child_s_time_is_limited",
        CHILD,
        "    signal.setitimer(signal.ITIMER_PROF, allowance.cpu_s)\n",
        "",
        (f"{TEST_SANDBOX}::test_processor_time_is_limited",),
    ),
    Guard(
        "the_child_s_memory_is_limited",
        CHILD,
        "        _limit(resource.RLIMIT_DATA, allowance.data_bytes)\n",
        "        pass\n",
        (f"{TEST_SANDBOX}::test_memory_is_limited",),
    ),
    Guard(
        "the_child_s_rows_are_limited",
        CHILD,
        "        if self._rows <= self._most:\n",
        "        if True:\n",
        (f"{TEST_SANDBOX}::test_rows_are_limited",),
    ),
    Guard(
        "a_child_that_ends_badly_accepts_nothing",
        SANDBOX,
        "        if self._done is None or child.status != 0:\n",
        "        if self._done is None:\n",
        (f"{TEST_SANDBOX}::test_a_child_that_ends_badly_after_its_last_line_is_refused",),
    ),
    Guard(
        "a_failed_row_accepts_nothing",
        SANDBOX,
        '        accepted = None if failed or self._done is None else self._done["accepted"]\n',
        '        accepted = None if self._done is None else self._done["accepted"]\n',
        (f"{TEST_SANDBOX}::test_no_row_no_end_or_a_failed_row_never_accept",),
    ),
)

__all__ = ["GUARDS"]
