"""Every file and folder name of every sprl directory, and nothing else.

A name is written down once, here. Readers and writers ask this module for it.
"""

from __future__ import annotations

import re
from pathlib import Path

from stateplay_rl.errors import InputError

# Every directory kind with the schema version that this code writes. Older versions are read, newer refused.
SCHEMAS = {
    "audit": 1,
    "conditions": 1,
    "encoded": 1,
    "groups": 1,
    "scores": 1,
    "probe": 1,
    "preview": 1,
    "reward_model": 1,
    "run": 1,
    "segment": 1,
    "verify": 1,
    "report": 1,
    "arena_clips": 1,
    "demo": 1,
}

WRITTEN_BY = {
    "audit": "audit-ckpt",
    "conditions": "build-conditions",
    "groups": "rollout",
    "scores": "score",
    "probe": "score --probe",
    "reward_model": "train-rm",
    "run": "train-nft",
    "verify": "verify",
    "report": "report",
}
"""The command behind each kind of directory that a user gives to another command."""

# Common to all directories.
MANIFEST = "manifest.json"
OLD_MANIFESTS = "manifest-*.json"
UNFINISHED = "unfinished.json"
CONFIG = "config.yaml"
LOCK = ".sprl-lock"
TEMP_MARK = ".sprl-tmp-"

# audit-<stem>/
AUDIT = "audit.json"
PROVENANCE = "provenance.parquet"

# conditions/
CONDITIONS = "conditions.parquet"
REJECTED = "rejected.parquet"
SUMMARY = "summary.json"
FRAMES_FOLDER = "frames"
ACTIONS_FOLDER = "actions"
STATES_FOLDER = "states"
WORK_FOLDER = "work"  # only while the directory is unfinished

# groups/
GROUPS_FOLDER = "groups"
GROUPS = "groups.parquet"
GROUP = "group.json"
FIRST_FRAME = "first_frame.png"
REFERENCE_VIDEO = "reference.mp4"

# scores/ and requests/
SCORES = "scores.parquet"
VERDICTS = "verdicts.jsonl"  # a line a group: scores, reason and the judge's details
AUDITS = "audits.jsonl"  # the same by the auditing judge
REFEREE = "referee.jsonl"  # the same by the referee, which is never trained on
IN_FLIGHT_FOLDER = "in_flight"  # verdicts of a batch that is not booked yet
GROUPS_READ = "groups_read.json"
REQUESTS_FOLDER = "requests"
REQUESTS = "requests.sqlite"
REQUEST_IMAGES_FOLDER = "images"
REQUEST_RAW_FOLDER = "raw"
PROBES_FOLDER = "probes"
SESSIONS_FOLDER = "sessions"  # who uses the store right now
PROBE = "probe.json"
PREVIEW = "preview.html"
DRY_RUN = "dry_run.json"

# reward_model/
ADAPTER_FOLDER = "adapter"
DATASET = "dataset.parquet"
EVALUATION = "evaluation.json"
GATE = "gate.json"
CALIBRATION = "calibration.png"
STUDENT = "student.json"  # what the judge `student` needs to score: base, protocol, reading
SERVED_TEMPLATE = "chat_template.jinja"  # for servers: thinking off
TRAINING_LOG = "train.jsonl"
PREDICTIONS = "predictions.jsonl"

# run/
LEDGER = "ledger.sqlite"
SEGMENTS_FOLDER = "segments"
CHECKPOINTS_FOLDER = "checkpoints"
LATEST = "latest"
BEST = "best"
METRICS = "metrics.jsonl"
HELDOUT = "heldout.jsonl"
TIMINGS = "timings.jsonl"
ALARMS = "alarms.jsonl"
HELDOUT_FOLDER = "heldout"
POLICY_FOLDER = "policy"
LIVE_WEIGHTS = "live.safetensors"
OLD_WEIGHTS = "old.safetensors"
OPTIMIZER = "optimizer.safetensors"
AVERAGE_WEIGHTS = "average.safetensors"
CHECKPOINT_STATE = "state.json"

# verify-<utc>/ and report/
VERIFY = "verify.json"
PROFILE = "profile.json"
REPORT = "report.html"
MEDIA_FOLDER = "media"
TABLES_FOLDER = "tables"
LABELS_FOLDER = "labels"
LABEL_PAGE = "label.html"
LABEL_KEY = "key.json"  # which policy made which video: nothing that a person who labels should open

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
_SEGMENT = re.compile(r"(\d{3,})-([a-z][a-z0-9]*)(\+\d+)?")
_CHECKPOINT = re.compile(r"step-(\d+)")


def safe_name(name: str, what: str) -> str:
    """`name` when it is fit to be one path component, so that data can never point out of its directory.

    Args:
        name: an id that came from data, for example a group id.
        what: the field, for the message.

    Raises:
        InputError: empty, too long, hidden, or with characters outside ``A-Z a-z 0-9 . _ + -``.
    """
    if _SAFE_NAME.fullmatch(name) is None:
        raise InputError(f"{what} {name!r} cannot be a file name", "use 1-128 letters, digits and . _ + - only")
    return name


def audit_folder(stem: str) -> str:
    """Default name of the directory that `sprl audit-ckpt` writes."""
    return f"audit-{stem}"


def verify_folder(utc_compact: str) -> str:
    """Default name of the directory that `sprl verify` writes."""
    return f"verify-{utc_compact}"


def frame_file(condition_id: str) -> str:
    """First frame of a condition, relative to a conditions directory."""
    return f"{FRAMES_FOLDER}/{safe_name(condition_id, 'condition_id')}.png"


def actions_file(condition_id: str) -> str:
    """Action table of a condition, relative to a conditions directory."""
    return f"{ACTIONS_FOLDER}/{safe_name(condition_id, 'condition_id')}.parquet"


def states_file(condition_id: str) -> str:
    """Game states of a condition, relative to a conditions directory."""
    return f"{STATES_FOLDER}/{safe_name(condition_id, 'condition_id')}.parquet"


def encoded_file(condition_id: str) -> str:
    """Encoded tensors of a condition, relative to an encoded directory."""
    return f"{safe_name(condition_id, 'condition_id')}.safetensors"


def candidate_latents_file(candidate: int) -> str:
    """Clean latents of a candidate, relative to its group's folder."""
    return f"candidate_{candidate}.safetensors"


def candidate_video_file(candidate: int) -> str:
    """Video of a candidate, relative to its group's folder."""
    return f"candidate_{candidate}.mp4"


def checkpoint_folder(step: int) -> str:
    """Folder of a checkpoint, relative to ``run/checkpoints``."""
    return f"step-{step}"


def checkpoint_step(name: str) -> int | None:
    """Step number of a checkpoint folder's name, None when it is none."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match.group(1)) if match else None


def old_manifest(index: int) -> str:
    """Manifest of an earlier seal of a directory that was extended since."""
    return f"manifest-{index:03d}.json"


def segment_folder(index: int, kind: str, extension: int = 0) -> str:
    """Folder of a segment, relative to ``run/segments``: ``000-a``, ``001-a+280``, ``002-c``."""
    name = f"{index:03d}-{kind}" + (f"+{extension}" if extension else "")
    if _SEGMENT.fullmatch(name) is None:
        raise ValueError(f"segment kind {kind!r} must be a lower-case word")
    return name


def parse_segment(name: str) -> tuple[int, str, int] | None:
    """Index, kind and extension of a segment folder's name, None when it is none."""
    match = _SEGMENT.fullmatch(name)
    if match is None:
        return None
    return int(match.group(1)), match.group(2), int(match.group(3) or 0)


def request_image_file(sha256: str) -> str:
    """A picture that was sent to a judge, relative to a request store."""
    return f"{REQUEST_IMAGES_FOLDER}/{safe_name(sha256, 'image sha256')}.jpg"


def raw_file(request_id: str) -> str:
    """Request and raw answer of an attempt, relative to a request store."""
    return f"{REQUEST_RAW_FOLDER}/{safe_name(request_id, 'request_id')}.json"


def probe_file(protocol_sha256: str) -> str:
    """Result of the last probe of a judge, relative to a request store."""
    return f"{PROBES_FOLDER}/{safe_name(protocol_sha256, 'protocol sha256')}.json"


def policy_file(sha256: str) -> str:
    """Exported trained weights, relative to a run directory."""
    return f"{POLICY_FOLDER}/{safe_name(sha256, 'policy sha256')}.safetensors"


def heldout_folder(batch: int, policy: str, stage: str = "a") -> str:
    """Groups of one held-out evaluation, relative to a run directory; two stages' judges never share one."""
    return f"{HELDOUT_FOLDER}/{batch}-{policy}" + ("" if stage == "a" else f"-{stage}")


def is_private(name: str) -> bool:
    """Whether a file or folder name belongs to the machinery (lock, leftover of a killed write)."""
    return name == LOCK or TEMP_MARK in name


def temp_name(final: Path, tag: str) -> Path:
    """Sibling of `final` under a hidden temporary name."""
    return final.with_name(f".{final.name}{TEMP_MARK}{tag}")
