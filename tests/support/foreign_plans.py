"""Plans as other tools write them."""

MEGATRON = r"""
# a launch script
torchrun --nproc_per_node 8 pretrain_gpt.py \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 \
    --num-layers 32 --num-layers-per-virtual-pipeline-stage 2 --sequence-parallel \
    --micro-batch-size=1 --global-batch-size 512 --seq-length 4096 --lr 1.0e-4 \
    --use-distributed-optimizer --recompute-granularity selective --overlap-grad-reduce \
    --bf16 --fp8-format hybrid --fp8-recipe blockwise
"""

TITAN = """
[job]
description = "llama"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "full"
[float8]
enable_float8_linear = true
"""

NEMO = """
trainer: {devices: 8, num_nodes: 16, precision: bf16-mixed}
model:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  context_parallel_size: 2
  micro_batch_size: 1
  global_batch_size: 256
  encoder_seq_length: 8192
  sequence_parallel: true
  activations_checkpoint_granularity: full
  fp8: true
  optim: {name: distributed_fused_adam, lr: 1e-4}
"""

NXD = """
trainer: {devices: 32, num_nodes: 4}
distributed_strategy:
  tensor_model_parallel_size: 32
  pipeline_model_parallel_size: 4
  zero1: True
  sequence_parallel: True
  kv_replicator: 4
data: {micro_batch_size: 1, global_batch_size: 1024, seq_length: 8192}
model: {activations_checkpoint_granularity: selective}
precision: {type: mixed_precision}
"""

DEEPSPEED = """{"train_batch_size": 512, "train_micro_batch_size_per_gpu": 2,
"zero_optimization": {"stage": 3, "overlap_comm": true, "reduce_bucket_size": 5e8,
                      "stage3_prefetch_bucket_size": 5e7},
"bf16": {"enabled": true}, "gradient_clipping": 1.0}"""

MAXTEXT = r"""
for ARGUMENT in "$@"; do echo "$ARGUMENT"; done
export LIBTPU_INIT_ARGS="--xla_enable_async_all_gather=true --xla_tpu_megacore_fusion=false"
python3 -m maxtext.trainers.pre_train.train "${CONFIGS:-configs}"/base.yml run_name=$RUN \
    steps=15 per_device_batch_size=3 gradient_accumulation_steps=2 remat_policy=minimal \
    ici_fsdp_parallelism=-1 ici_tensor_parallelism=4 dcn_tensor_parallelism=2 \
    attention='flash' quantization="" model_name=llama3.1-70b
"""
