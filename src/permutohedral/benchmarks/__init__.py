"""The workloads that speed is judged by, and what runs them: `permutohedral benchmark`.

inputs      the data, seeded, the same for every contender
workloads   the registry: what is run on which data, on the CPU (`workloads`) and on a GPU (`gpu_workloads`)
peers       other people's libraries doing the same operation, each optional
verify      an operator that disagrees with the reference is not timed
timing      interleaved repetitions, medians and spread
runner      all of it in order, into one report
"""
