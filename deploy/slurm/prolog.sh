#!/bin/sh
# Slurm prolog: a node whose mount does not answer within two seconds takes no job. Set in slurm.conf:
#   Prolog=/etc/slurm/openshelf-prolog.sh
# A job may name what it will read, so that it is brought in while the job starts:
#   #SBATCH --comment="openshelf=datasets/belle/chat@1.0,datasets/redpajama/arxiv@2.0"
public=${OPENSHELF_PUBLIC:-/public}

# Exit code 4 of the probe says "serves, but degraded": good enough to run.
openshelf probe "$public" >/dev/null 2>&1
case $? in
    0 | 4) ;;
    *)
        echo "openshelf: $public does not answer on $(hostname)" >&2
        exit 1 # the node is drained, the job requeued
        ;;
esac

wanted=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/^ *Comment=.*openshelf=\([A-Za-z0-9@/._,-]*\).*/\1/p')
if [ -n "$wanted" ]; then
    echo "$wanted" | tr ',' '\n' | while read -r release; do
        openshelf warm "$public" "$release" --no-wait >/dev/null 2>&1 || true
    done
fi
exit 0
