#!/bin/bash
#SBATCH --comment='demo-20260101-aaaa 0badcafe link=1'
#SBATCH --cpus-per-task=1
#SBATCH --dependency=singleton
#SBATCH --export=NIL
#SBATCH --gres=gpu:1
#SBATCH --job-name=demo-20260101-aaaa.0badcafe
#SBATCH --no-requeue
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/srv/team/runs/demo-20260101-aaaa/logs/0001.%j.out
#SBATCH --signal=B:USR1@300
#SBATCH --time=30

# Link 1 of 3 of run demo-20260101-aaaa.
set -euo pipefail
# The signal that asks for a save may come before the agent can take it; then the deadline does its work.
trap '' USR1
# Nothing of the submitting shell travels with the job (--export=NIL), so what is needed is set here.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if [ -z "${HOME:-}" ]; then unset HOME; export HOME=~; fi
export SLURM_EXPORT_ENV=ALL
LAUNCH_STARTED=$(date +%s); export LAUNCH_STARTED
export PYTHONUNBUFFERED=1
export PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=/srv/team/snapshots/abababababababababababababababababababababababababababababababab
export LAUNCH_RUN_DIR=/srv/team/runs/demo-20260101-aaaa
export LAUNCH_LINK=1
export LAUNCH_TARGET_STEP=1000
setup_line='cd /srv/team/snapshots/abababababababababababababababababababababababababababababababab'
setup_failed() {
  status=$?
  /opt/env/bin/python -B /srv/team/runs/demo-20260101-aaaa/links/agent --setup-failed="$status" --setup-line="$setup_line" --
  exit "$status"
}
trap setup_failed EXIT
cd /srv/team/snapshots/abababababababababababababababababababababababababababababababab
trap - EXIT
exec /opt/env/bin/python -B /srv/team/runs/demo-20260101-aaaa/links/agent \
  --walltime=1800 \
  --save-margin=300 \
  --lock-stale=120 \
  --nodes=1 \
  --tasks-per-node=1 \
  --cpus-per-task=1 \
  --snapshot-marker=/srv/team/snapshots/abababababababababababababababababababababababababababababababab/.snapshot-sha256 \
  --snapshot-sha256=abababababababababababababababababababababababababababababababab \
  -- /opt/env/bin/python -m dflash_train train /srv/team/runs/demo-20260101-aaaa/resolved.yaml
