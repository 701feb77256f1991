#!/bin/bash
# On every machine: bash run_distribute_multi_node.sh "python distribute_task.py …" RANK_TABLE [8,16] 16
#
# [8,16] are the numbers of this machine's processes among all 16; every machine has as many. The first machine's
# address comes from the rank table, or from MASTER_ADDR (and MASTER_PORT, 8118). PET_LAUNCH_SECRET must be the same
# on all of them, and known to nobody else; `openssl rand -hex 16` makes one.
# PET_LAUNCH_OPTIONS may hold more options of pet launch, such as --hang-timeout 60 on a busy machine.
# Logs: output/log/rank_N/mindformer.log
set -e
if [ $# -ne 4 ]; then
    echo "usage: bash $0 \"CMD\" RANK_TABLE [FIRST,END] RANK_SIZE    (RANK_TABLE may be \"\")" >&2
    exit 2
fi
PLACE=$(python -c "from pet.compat.rank_table import place; print(place('$3', $4, '$2'))")
eval "exec pet launch --log-name mindformer.log $PET_LAUNCH_OPTIONS $PLACE -- $1"
