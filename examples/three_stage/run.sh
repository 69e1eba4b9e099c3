#!/usr/bin/env bash
# The three stages: A (a paid judge scores) -> B (a student learns to judge) -> its gate -> C (the student judges).
#
#   examples/three_stage/run.sh smoke OUT                                      arena, two CPU cores, minutes
#   WORLD=my.yaml CSV=clips.csv examples/three_stage/run.sh real OUT           7 GPUs, weeks
#
# It may stop at any line: a crash, Ctrl-C, a full disk, a budget. Start it again with the same OUT. Finished steps are
# recognised by their sealed directories and cost seconds; the one that was interrupted goes on (--resume). The script
# keeps no notes of its own. Its exit code is that of the step that stopped it: 4 when the student did not pass.
set -euo pipefail
usage() { sed -n '2,5p' "${BASH_SOURCE[0]}" | cut -c3- >&2; exit 2; }
[ $# -eq 2 ] || usage
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mode=$1; mkdir -p "$2"; out=$(cd "$2" && pwd)
export RL_RUN_ROOT=${RL_RUN_ROOT:-$out}          # the store of paid requests lies below it: share it between runs

PYTHON=${PYTHON:-python}
sprl() { echo "+ sprl $*" >&2; $PYTHON -m stateplay_rl "$@"; }

if [ "$mode" = smoke ]; then
  WORLD=arena PRESET=arena HELDOUT=16 GPUS=0
  A_CONFIG=$here/smoke.yaml; C_CONFIG=$here/smoke.yaml; RM_CONFIG=$here/../student/arena.yaml
  RM_SETTINGS=(--set optimizer.groups_per_step=2 --set optimizer.epochs=1 --set ablations=false
    --set 'gate.must_beat=[constant]')
  C_SETTINGS=(--force-without-gate)              # ten groups teach nothing: C runs marked `smoke`, 10 batches at most
  PROBE_GROUPS=2
elif [ "$mode" = real ]; then
  : "${WORLD:?a world file, as examples/worlds/stateplay-5b.yaml}" "${CSV:?the CSV of clips}"
  PRESET=stateplay HELDOUT=${HELDOUT:-200} GPUS=${GPUS:-7}
  A_CONFIG=${A_CONFIG:-$here/api_b_only.yaml}; C_CONFIG=${C_CONFIG:-$here/local_b_only.yaml}
  RM_CONFIG=${RM_CONFIG:-$here/rm_qwen35.yaml}
  RM_SETTINGS=(); C_SETTINGS=(); PROBE_GROUPS=8
else usage; fi

launch() {                                       # a command on all GPUs, or in one process on the CPU
  if [ "$GPUS" -gt 1 ]; then
    echo "+ sprl $* ($GPUS processes)" >&2
    accelerate launch --multi_gpu --num_processes "$GPUS" -m stateplay_rl "$@"
  else sprl "$@"; fi
}

# -- arena stands in for the data and for the paid judge ---------------------------------------------------------------
JUDGE=(); AUDIT_JUDGE=()
if [ "$mode" = smoke ]; then
  if [ ! -d "$out/clips" ]; then                 # whole or not there
    rm -rf "$out/clips.part"
    $PYTHON -m stateplay_rl.arena.make_clips --out "$out/clips.part" --clips 48 --seed 7
    mv "$out/clips.part" "$out/clips"
  fi
  CSV=$out/clips/metadata_state_polish.csv
  # The address is a setting of the run: a later start asks for the same port again.
  port=$(cat "$out/port" 2>/dev/null || echo 0); rm -f "$out/port.ready"
  serve() {
    $PYTHON -m stateplay_rl.arena.serve --port "$port" --port-file "$out/port.ready" --with-parent >&2 & server=$!
  }
  serve
  trap 'kill "$server" 2>/dev/null || true' EXIT
  for _ in $(seq 300); do                        # a killed script's server needs a moment to leave the port
    [ -s "$out/port.ready" ] && break
    kill -0 "$server" 2>/dev/null || serve
    sleep 0.2
  done
  [ -s "$out/port.ready" ] || { echo "arena's judge did not start on port $port: does another process use it, or is" \
    "this script running twice in $out?" >&2; exit 5; }
  cp "$out/port.ready" "$out/port"
  url="http://127.0.0.1:$(cat "$out/port")/v1"
  JUDGE=(--judge openai --set "judge.base_url=$url" --set judge.protocol.frames=8)
  AUDIT_JUDGE=(--set audits.judge.name=openai --set audits.judge.protocol.frames=8
    --set "audits.judge.base_url=$url")
fi

# -- before: is this the model we think it is, which conditions are there, and can the judge tell candidates apart? ----
part() { $PYTHON - "$@" <<'END'
import sys, yaml                                 # some sections of A's settings: the probe asks A's very judge
settings = yaml.safe_load(open(sys.argv[1])) or {}
print(yaml.safe_dump({key: settings[key] for key in sys.argv[2:] if key in settings}))
END
}
part "$A_CONFIG" mode sampling > "$out/probe-rollout.yaml"
part "$A_CONFIG" judge > "$out/probe-judge.yaml"
sprl audit-ckpt --world "$WORLD" --out "$out/audit" --resume
sprl build-conditions --csv "$CSV" --preset "$PRESET" --heldout "$HELDOUT" --out "$out/conditions" --resume
sprl rollout "$out/conditions" --config "$out/probe-rollout.yaml" --world "$WORLD" --pool heldout \
  --limit "$PROBE_GROUPS" --out "$out/probe-groups" --resume
sprl score "$out/probe-groups" --config "$out/probe-judge.yaml" "${JUDGE[@]}" --probe --out "$out/probe" --resume

# -- A: one request a group; the answers are kept for B ----------------------------------------------------------------
run=$out/run
train=(train-nft "$out/conditions" --world "$WORLD" --audit "$out/audit" --set "encoded=$out/encoded" --out "$run")
launch "${train[@]}" --config "$A_CONFIG" --stage a "${JUDGE[@]}" --resume

# -- B and its gate. Not passed: A grows by 280 conditions, at most GROW times (each time 280 requests) ----------------
sealed() { [ -f "$1/manifest.json" ]; }
passed() { $PYTHON -c 'import json, sys; sys.exit(not json.load(open(sys.argv[1]))["passed"])' "$1/gate.json"; }
extensions() { find "$run/segments" -path '*-a+*/manifest.json' | wc -l; }
for ((grown = 0; ; grown++)); do
  student=$out/reward_model-$grown               # a student each time: the run that it learnt from has changed
  if ! sealed "$student"; then
    # --resume would take the first extension for the second: an extension is resumed only while it is open.
    if ! sealed "$run"; then launch "${train[@]}" --config "$A_CONFIG" --extend 280 "${JUDGE[@]}" --resume
    elif [ "$(extensions)" -lt "$grown" ]; then launch "${train[@]}" --config "$A_CONFIG" --extend 280 "${JUDGE[@]}"
    fi
    launch train-rm "$run" --conditions "$out/conditions" --config "$RM_CONFIG" "${RM_SETTINGS[@]}" \
      --out "$student" --resume
  fi
  # "The software ran" and "the student is good enough" are two things.
  if passed "$student" || [ "$mode" = smoke ]; then break; fi
  if [ "$grown" -ge "${GROW:-0}" ]; then
    sprl report "$run" "$student" "$out/probe" --out "$out/report" --overwrite
    echo "The student did not pass its gate: see $out/report/report.html. To let A grow by 280 conditions (280" \
      "requests) and train again: GROW=$((grown + 1)) with the same command. Or stop here." >&2
    exit 4
  fi
done

# -- C: goes on in A's run, with A's ledger, policies and optimizer; the API audits now and then -----------------------
launch "${train[@]}" --config "$C_CONFIG" --stage c --judge student --reward-model "$student" \
  "${C_SETTINGS[@]}" "${AUDIT_JUDGE[@]}" --resume

# -- what happened, and is every byte what it was? ---------------------------------------------------------------------
sprl report "$run" "$student" "$out/probe" "$out/conditions" --out "$out/report" --overwrite
sprl verify dir "$run" --out "$out/verify-run" --overwrite
echo "done: $out/report/report.html" >&2
