#!/bin/bash
# bash run_distribute_single_node.sh "python distribute_task.py …" RANK_TABLE [0,4] 4
#
# RANK_TABLE may be "" or a rank table file; [0,4] are the devices 0, 1, 2, 3; 4 is the number of processes.
# PET_LAUNCH_OPTIONS may hold more options of pet launch, such as --hang-timeout 60 on a busy machine.
# Logs: output/log/rank_N/mindformer.log
set -e
if [ $# -lt 3 ] || [ $# -gt 4 ]; then
    echo "usage: bash $0 \"CMD\" RANK_TABLE [FIRST,END] RANK_SIZE    (RANK_TABLE may be \"\")" >&2
    exit 2
fi
DEVICES=$(python -c "from pet.compat.rank_table import devices; print(devices('$3', '$2'))")
SIZE=${4:-$(python -c "print(len('$DEVICES'.split(',')))")}
eval "exec pet launch --log-name mindformer.log $PET_LAUNCH_OPTIONS -n $SIZE --devices $DEVICES -- $1"
