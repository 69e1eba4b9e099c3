"""Lines that need no model: audit, conditions, plan, disk, and the record of the kill drill."""

from __future__ import annotations

from stateplay_rl.checks.audit.trainable import require_trainable_audit
from stateplay_rl.checks.lines import NotChecked, require
from stateplay_rl.checks.preflight_data import check_sample, spread_sample
from stateplay_rl.errors import CheckError
from stateplay_rl.stages.preflight.flight import Flight
from stateplay_rl.stages.train_nft import heldout
from stateplay_rl.stages.train_nft.disk import Need, require_room
from stateplay_rl.stages.train_nft.inputs import TrainInputs
from stateplay_rl.stages.train_nft.load import work_out
from stateplay_rl.stages.train_nft.permissions import preflight_config
from stateplay_rl.stages.train_nft.plan import make_plan
from stateplay_rl.stages.train_nft.segments import plan_segment
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.manifest import read_manifest


def check_audit(flight: Flight) -> str:
    audit = require_trainable_audit(flight.train.audit, flight.world_config, flight.train.world)
    return f"{flight.train.audit} passed, of these very files ({len(audit['files'])})"


def check_conditions(flight: Flight) -> str:
    if flight.config.conditions is None:
        raise CheckError("no conditions were given", "give --conditions DIR of sprl build-conditions")
    store = ConditionStore.open(flight.config.conditions)
    heldout.choose_heldout(store, flight.train.heldout.conditions)
    passed, held = len(store.select("pass")), len(store.select("heldout"))
    require(
        passed > 0,
        f"{flight.config.conditions} has no condition in pool 'pass'",
        "its summary.json says why rows were rejected",
    )
    flight.sample = spread_sample(store.select("pass"), flight.config.sample)
    flight.store = store
    return f"{passed} conditions in the pass, {held} held out"


def check_frames(flight: Flight) -> str:
    return check_sample(flight.conditions(), flight.sample, flight.spec)


def check_plan(flight: Flight) -> str:
    flight.conditions()
    assert flight.config.conditions is not None, "opened"
    rows = make_plan(flight.train, TrainInputs(flight.config.conditions), flight.run)
    flight.measures["plan"] = dict(rows)
    shown = [f"{name}: {value}" for name, value in rows if name in ("batches", "optimizer steps", "cost bound", "time")]
    return "; ".join(shown)


def check_disk(flight: Flight) -> str:
    """The plan's bytes, with a group's bytes as they were measured here."""
    store = flight.conditions()
    assert flight.config.conditions is not None, "opened"
    total, smoke = len(store.select("pass")), flight.train.stage == "c"
    plan = plan_segment(flight.train, TrainInputs(flight.config.conditions), flight.run, total, smoke=smoke)
    needs = work_out(flight.train, flight.world_config, store.select("pass"), plan, flight.run).disk
    measured = [sum(f.stat().st_size for f in group.folder.iterdir()) for group in flight.groups]
    if measured:
        most = max(needs["groups"].bytes, max(measured) * float(plan.conditions))
        needs["groups"] = Need(flight.run, most)
    require_room(needs)
    needed = int(sum(need.bytes for need in needs.values()))
    flight.measures["disk_bytes"] = {name: int(need.bytes) for name, need in needs.items()}
    return f"{needed / 2**30:.2f} GiB needed where {flight.run} will lie, and free"


def check_resume(flight: Flight) -> str:
    """A passed kill drill of this config on all ranks: `sprl verify resume`."""
    again = "run sprl verify resume CONFIG --conditions DIR --processes RANKS, then give --resume-record DIR"
    record = flight.config.resume_record
    if record is None:
        if flight.train.run_mode == "production":
            raise CheckError("no kill drill of this config", again)
        raise NotChecked("no kill drill was named; production mode needs one", again)
    extra = read_manifest(record, schema="verify", verify_files=True).extra
    if extra.get("kind") != "resume" or extra.get("passed") is not True:
        raise CheckError(f"{record} is no passed kill drill", again)
    if extra.get("train_config_sha256") != preflight_config(flight.train):
        raise CheckError(f"{record} is a drill of another config", again)
    return f"{record} passed with {extra['processes']} processes"
