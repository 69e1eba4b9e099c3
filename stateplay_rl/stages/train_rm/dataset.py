"""``dataset.parquet``: what is learned from, with the length of every group counted before anything is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateplay_rl.reward_model.inputs import GroupReader, Length, refuse_too_long
from stateplay_rl.runtime import Progress
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.train_rm.examples import DATASET_COLUMNS, SPLITS, Example, Examples
from stateplay_rl.stages.train_rm.setting import Setting
from stateplay_rl.stores import layout, tables


@dataclass(frozen=True)
class Dataset:
    """Rows of the table, by group id."""

    rows: tuple[dict[str, Any], ...]

    @property
    def orders(self) -> dict[str, tuple[int, ...]]:
        """Stored candidate at each position shown, by group id."""
        return {row["group_id"]: tuple(row["order"]) for row in self.rows}

    def facts(self, sha256: str) -> dict[str, Any]:
        """Hash and counts, for the gate and the manifest."""
        counts = Counter(row["split"] for row in self.rows)
        return {
            "sha256": sha256,
            "groups": {split: counts[split] for split in SPLITS},
            "clusters": {
                split: len({row["cluster_id"] for row in self.rows if row["split"] == split}) for split in SPLITS
            },
            "longest_tokens": max(row["prompt_tokens"] + row["answer_tokens"] for row in self.rows),
        }


def begun_with(setting: Setting, examples: Examples) -> Examples:
    """The examples of an interrupted run as its table lists them; all of them when there is no table yet."""
    path = setting.out / layout.DATASET
    if not setting.processes.broadcast(path.is_file() if setting.processes.is_main else None):
        return examples
    rows = tables.read_table(path, DATASET_COLUMNS)
    return examples.only({row["group_id"]: row["group_sha256"] for row in rows})


def make_dataset(setting: Setting, examples: Examples, reader: GroupReader) -> Dataset:
    """Count every group's length and write the table; an interrupted run's table is taken as it is.

    Args:
        examples: as `begun_with` gives them.

    Raises:
        InputError: a group is longer than `max_length`: it is neither cut nor thinned out nor left out.
    """
    path = setting.out / layout.DATASET
    if setting.processes.broadcast(path.is_file() if setting.processes.is_main else None):
        dataset = Dataset(tuple(tables.read_table(path, DATASET_COLUMNS)))
    else:
        dataset = Dataset(tuple(_counted(setting, examples, reader)))
    lengths = {row["group_id"]: Length(row["prompt_tokens"], row["answer_tokens"]) for row in dataset.rows}
    refuse_too_long(lengths, setting.config.max_length)
    on_main(setting.processes, lambda: _write(path, dataset.rows))
    return dataset


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    if not path.is_file():
        tables.write_table(path, DATASET_COLUMNS, rows)


def _counted(setting: Setting, examples: Examples, reader: GroupReader) -> list[dict[str, Any]]:
    mine = setting.processes.mine(examples.items)
    rows = []
    with Progress("count tokens", len(mine), "groups") as progress:
        for _, example in mine:
            rows.append(_row(example, examples, reader))
            progress.advance()
    return sorted(setting.processes.gather(rows), key=lambda row: str(row["group_id"]))


def _row(example: Example, examples: Examples, reader: GroupReader) -> dict[str, Any]:
    payload = examples.payload(example)
    length = reader.length(payload)
    return {
        "group_id": example.group_id,
        "group_sha256": example.group_sha256,
        "condition_id": example.condition_id,
        "cluster_id": example.cluster,
        "split": example.split,
        "mechanics_class": example.mechanics_class,
        "request_id": example.request_id,
        "order": list(payload.order),
        "labels": list(payload.labels),
        "raw_scores": list(example.raw_scores),
        "targets": list(example.targets),
        "prompt_tokens": length.prompt,
        "answer_tokens": length.answer,
        "images": len(payload.images),
    }
