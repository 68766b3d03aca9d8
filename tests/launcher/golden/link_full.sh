#!/bin/bash
#SBATCH --account=speech
#SBATCH --comment='demo-20260101-aaaa 0badcafe link=2'
#SBATCH --constraint=h200
#SBATCH --cpus-per-task=12
#SBATCH --dependency=singleton
#SBATCH --exclude=n1,n2
#SBATCH --export=NIL
#SBATCH --gpus-per-node=8
#SBATCH --job-name=demo-20260101-aaaa.0badcafe
#SBATCH --mem=900G
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --open-mode=append
#SBATCH --output=/srv/team/runs/demo-20260101-aaaa/logs/0002.%j.out
#SBATCH --partition=gpu
#SBATCH --qos=long
#SBATCH --reservation=r1
#SBATCH --signal=B:USR1@300
#SBATCH --time=240

# Link 2 of 3 of run demo-20260101-aaaa.
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
export HF_HUB_OFFLINE=1
export PYTHONPATH=/srv/team/snapshots/abababababababababababababababababababababababababababababababab:/opt/more
export ODD='it'"'"'s $HOME'
export LAUNCH_RUN_DIR=/srv/team/runs/demo-20260101-aaaa
export LAUNCH_LINK=2
export LAUNCH_TARGET_STEP=1000
setup_line='cd /srv/team/snapshots/abababababababababababababababababababababababababababababababab'
setup_failed() {
  status=$?
  /opt/env/bin/python -B /srv/team/runs/demo-20260101-aaaa/links/agent --setup-failed="$status" --setup-line="$setup_line" --
  exit "$status"
}
trap setup_failed EXIT
cd /srv/team/snapshots/abababababababababababababababababababababababababababababababab
# The site's setup; module and conda scripts do not stand `set -u`.
set +u
setup_line='module load cuda && module load nccl'
module load cuda && module load nccl
status=$?; [ $status -eq 0 ] || exit $status
setup_line='ulimit -n 65536'
ulimit -n 65536
status=$?; [ $status -eq 0 ] || exit $status
trap - EXIT
exec /opt/env/bin/python -B /srv/team/runs/demo-20260101-aaaa/links/agent \
  --walltime=14390 \
  --save-margin=300 \
  --lock-stale=120 \
  --nodes=2 \
  --tasks-per-node=8 \
  --cpus-per-task=12 \
  --snapshot-marker=/srv/team/snapshots/abababababababababababababababababababababababababababababababab/.snapshot-sha256 \
  --snapshot-sha256=abababababababababababababababababababababababababababababababab \
  -- /opt/env/bin/python -m dflash_train train /srv/team/runs/demo-20260101-aaaa/resolved.yaml
