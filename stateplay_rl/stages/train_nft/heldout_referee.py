"""The referee's own curve over the held-out videos: what a judge that is also the reward cannot say of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stateplay_rl.config.train_nft import HeldoutConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import UsageError
from stateplay_rl.evaluation.action_following import ActionReferee
from stateplay_rl.evaluation.checkout_metrics import CheckoutMetrics, ClipInputs, StateplayEvaluator
from stateplay_rl.evaluation.intervals import Bounds
from stateplay_rl.evaluation.picture import measure_detail, measure_parts
from stateplay_rl.evaluation.referee import RefereeVerdict, VideoReferee
from stateplay_rl.stages.action_choice import action_window, case_of, make_actions
from stateplay_rl.stages.hud_choice import make_referee
from stateplay_rl.stages.main_process import on_main
from stateplay_rl.stages.train_nft.heldout_lines import (
    GroupLook,
    Pictures,
    actions_line,
    drift_line,
    evaluator_line,
    referee_line,
)
from stateplay_rl.stages.train_nft.samples import JudgedGroup
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import StoredGroup
from stateplay_rl.stores.video import decode_mp4


@dataclass(frozen=True)
class HeldoutViewers:
    """Who looks at held-out videos besides the training judge. Each may be missing."""

    referee: VideoReferee | None = None
    evaluator: StateplayEvaluator | None = None
    actions: ActionReferee | None = None

    @classmethod
    def of(cls, config: HeldoutConfig, conditions: ConditionStore, processes: Processes) -> HeldoutViewers:
        """Those that the settings name; none where no held-out evaluation is made. Rank 0 calibrates for all.

        Raises:
            UsageError: a referee or an evaluator that does not fit.
            InputError: the checkout is missing or cannot be imported.
        """
        if config.conditions == 0:
            return cls()
        if (config.evaluator == "stateplay") != (config.evaluator_checkout is not None):
            raise UsageError(
                "heldout.evaluator stateplay and heldout.evaluator_checkout belong together",
                "--set heldout.evaluator=stateplay --set heldout.evaluator_checkout=PATH",
            )
        checkout = config.evaluator_checkout
        evaluator = None if checkout is None else StateplayEvaluator.open(checkout)
        referee = make_referee(config.referee, conditions)
        actions = on_main(processes, lambda: make_actions(config.actions, conditions, config.action_clips))
        return cls(referee, evaluator, processes.broadcast(actions))

    def look(
        self,
        groups: Sequence[StoredGroup],
        judged: Sequence[JudgedGroup],
        conditions: ConditionStore,
        processes: Processes,
        seed: int,
    ) -> dict[str, Any]:
        """What is added to the line of `heldout.jsonl`; equal on every rank.

        Args:
            groups: this rank's finished groups.
            judged: all ranks' judged groups, with the pictures' plain measures.
            conditions: their conditions, with state columns where the source has them.
            processes: the ranks.
            seed: of the bootstrap.
        """
        seen = [self._group(group, conditions) for group in groups]
        gathered = sorted(processes.gather(seen), key=lambda result: result.condition_id)
        clusters = {result.condition_id: conditions.by_id(result.condition_id).cluster_id for result in gathered}
        return {
            "referee": None if self.referee is None else referee_line(self.referee.name, gathered, clusters, seed),
            "evaluator": None if self.evaluator is None else evaluator_line(self.evaluator, gathered),
            "actions": None if self.actions is None else actions_line(self.actions, gathered),
            "picture_drift": drift_line(gathered, judged),
        }

    def _group(self, group: StoredGroup, conditions: ConditionStore) -> GroupLook:
        record = group.record
        condition = record.condition_id
        case = case_of(conditions, record)
        verdicts: list[RefereeVerdict] = []
        obeyed: list[Mapping[str, Bounds]] = []
        metrics: list[CheckoutMetrics] = []
        details: list[Mapping[str, float]] = []
        quarters: list[Sequence[Mapping[str, float]]] = []
        for k in range(record.candidates):
            path = group.candidate_video(k)
            frames_ThwC = decode_mp4(path)
            details.append(measure_detail(frames_ThwC))
            quarters.append(measure_parts(frames_ThwC))
            if self.referee is not None:
                verdicts.append(self.referee.judge(frames_ThwC, case))
            if self.actions is not None:
                obeyed.append(self.actions.obeyed(frames_ThwC, case, action_window(conditions)))
            if self.evaluator is not None:
                inputs = ClipInputs(
                    path, frames_ThwC, case.states, case.held_RK, reference_path=group.reference_video(), fps=record.fps
                )
                metrics.append(self.evaluator.evaluate(inputs))
        reference = group.reference_video()
        real, real_quarters = None, None
        if reference is not None:
            clip_ThwC = decode_mp4(reference)
            real, real_quarters = measure_detail(clip_ThwC), measure_parts(clip_ThwC)
        return GroupLook(
            condition,
            record.mechanics_class,
            tuple(verdicts),
            tuple(metrics),
            Pictures(tuple(details), tuple(quarters), real, real_quarters),
            tuple(obeyed),
        )
