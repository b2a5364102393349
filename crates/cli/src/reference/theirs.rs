//! The metric families of the reference system (behaviour.md 11.2): each is ours too, or stands here with the reason why not.

/// Those that are ours too, under the same name.
pub(super) const SHARED: &[(&str, &[&str])] = &[
    (
        "dynamo_frontend_",
        &[
            "active_requests",
            "cached_tokens",
            "disconnected_clients",
            "embedding_latency_seconds",
            "event_loop_delay_seconds",
            "event_loop_stall_total",
            "inflight_requests",
            "input_sequence_tokens",
            "inter_token_latency_seconds",
            "model_cancellation_total",
            "model_context_length",
            "model_kv_cache_block_size",
            "model_max_num_batched_tokens",
            "model_max_num_seqs",
            "model_migration_duration_seconds",
            "model_migration_limit",
            "model_migration_max_seq_len_exceeded_total",
            "model_migration_total",
            "model_ready",
            "model_rejection_total",
            "model_total_kv_blocks",
            "output_sequence_tokens",
            "output_tokens_total",
            "queued_requests",
            "request_duration_seconds",
            "requests_started_total",
            "requests_total",
            "router_admission_received_total",
            "router_admission_rejected_total",
            "stage_duration_seconds",
            "stage_requests",
            "template_seconds",
            "time_to_first_token_seconds",
            "tokenize_seconds",
            "tokenizer_cache_cached_tokens_total",
            "tokenizer_cache_hits_total",
            "tokenizer_cache_misses_total",
            "tokenizer_cache_uncached_tokens_total",
            "tokenizer_latency_ms",
            "worker_active_decode_blocks",
            "worker_active_prefill_tokens",
            "worker_last_input_sequence_tokens",
            "worker_last_inter_token_latency_seconds",
            "worker_last_time_to_first_token_seconds",
        ],
    ),
    (
        "dynamo_component_router_",
        &[
            "input_sequence_tokens",
            "inter_token_latency_seconds",
            "kv_best_eligible_cached_prefix_tokens_total",
            "kv_hit_rate",
            "kv_selected_cached_prefix_tokens_total",
            "kv_worker_reused_tokens_total",
            "non_max_overlap_selections_total",
            "output_sequence_tokens",
            "overlap_blocks_lost",
            "requests_started_total",
            "requests_total",
            "time_to_first_token_seconds",
            "worker_registered",
        ],
    ),
    (
        "dynamo_router_overhead_",
        &["block_hashing_ms", "indexer_find_matches_ms", "scheduling_ms", "seq_hashing_ms", "total_ms"],
    ),
    (
        "dynamo_request_plane_",
        &["inflight_requests", "queue_seconds", "roundtrip_ttft_seconds", "send_seconds"],
    ),
    (
        "dynamo_transport_tcp_",
        &[
            "accept_backoff_total",
            "bytes_received_total",
            "bytes_sent_total",
            "errors_total",
            "pool_active",
            "pool_idle",
        ],
    ),
    ("dynamo_work_handler_", &["network_transit_seconds", "time_to_first_response_seconds"]),
    ("dynamo_tokio_", &["alive_tasks", "global_queue_depth", "worker_busy_ratio", "worker_park_count_total"]),
    (
        "dynamo_component_",
        &[
            "cancellation_total",
            "drain_time_seconds",
            "errors_total",
            "gpu_cache_usage_percent",
            "inflight_requests",
            "kv_cache_events_applied",
            "kv_cache_hit_rate",
            "model_load_time_seconds",
            "request_bytes_total",
            "request_duration_seconds",
            "requests_total",
            "response_bytes_total",
            "total_blocks",
            "uptime_seconds",
        ],
    ),
];

/// Those without a counterpart, with one reason for several. A trailing `*` stands for any ending.
pub(super) const ABSENT: &[(&[&str], &str)] = &[
    (
        &["dynamo_frontend_failures_total"],
        "the sum of `dynamo_frontend_requests_total` with `status=\"error\"`, which says what failed",
    ),
    (
        &["dynamo_frontend_detokenize_total_us", "dynamo_frontend_detokenize_token_count"],
        "reading the clock for each token costs as much as making text of it; the tokens are `dynamo_frontend_output_tokens_total`",
    ),
    (
        &[
            "dynamo_frontend_image_tokens_per_request",
            "dynamo_frontend_images_per_request",
            "dynamo_frontend_videos_per_request",
            "dynamo_frontend_audio_per_request",
        ],
        "no model here takes images, videos or sound",
    ),
    (&["dynamo_frontend_lora_*"], "adapters are part of a block's identity, but no engine here loads any"),
    (
        &["dynamo_frontend_router_queue_*"],
        "the router holds nobody back: what all workers are too busy for is refused at once, the rest waits in the engine (`waiting` of `dynamo status`)",
    ),
    (
        &[
            "dynamo_component_router_shared_cache_*",
            "dynamo_router_overhead_shared_cache_query_ms",
            "dynamo_router_shared_cache_errors_total",
        ],
        "there is no cache that all workers share",
    ),
    (
        &["dynamo_component_router_kv_transfer_estimated_latency_seconds"],
        "prefill and decode are not on different workers",
    ),
    (
        &[
            "dynamo_component_router_remote_indexer_query_failures_total",
            "dynamo_component_router_remote_indexer_write_failures_total",
        ],
        "a router has its index in its own memory; what `dynamo router` is asked is `dynamo_component_router_calls_total`",
    ),
    (
        &[
            "dynamo_component_router_approximate_*",
            "dynamo_component_router_kv_event_source_mismatch_workers",
        ],
        "the index follows events only, and every engine here publishes them",
    ),
    (&["dynamo_component_router_active_sequence_*"], "bookings of other routers are not counted one by one"),
    (
        &["dynamo_component_router_kv_zmq_ingress_*", "dynamo_component_kv_publisher_*"],
        "engines here are in the worker's process: nothing is relayed, and nothing can be lost before it is numbered",
    ),
    (
        &["dynamo_component_kv_cache_event_warnings", "dynamo_component_ckf_mutation_total"],
        "of an index of another make; a batch that comes twice changes nothing here and is no cause for alarm",
    ),
    (
        &[
            "dynamo_transport_tcp_server_queue_depth",
            "dynamo_work_handler_queue_depth",
            "dynamo_work_handler_queue_capacity",
            "dynamo_work_handler_enqueue_rejected_total",
            "dynamo_work_handler_permit_wait_seconds",
            "dynamo_work_handler_pool_active_tasks",
            "dynamo_work_handler_pool_capacity",
        ],
        "the worker has no pool of tasks and no queue before it: a request that was read is in the engine's hands",
    ),
    (
        &[
            "dynamo_tokio_budget_forced_yield_total",
            "dynamo_tokio_blocking_threads",
            "dynamo_tokio_blocking_idle_threads",
            "dynamo_tokio_blocking_queue_depth",
            "dynamo_tokio_worker_mean_poll_time_ns",
            "dynamo_tokio_worker_local_queue_depth",
            "dynamo_tokio_worker_steal_count_total",
            "dynamo_tokio_worker_overflow_count_total",
        ],
        "tokio tells these only when it is built with `tokio_unstable`",
    ),
    (&["dynamo_component_cleanup_time_seconds"], "when it is known, nobody can ask for it any more"),
    (&["dynamo_component_tasks_*"], "there are no tasks of users' own"),
    (&["vllm:*", "sglang:*", "trtllm_*"], "those engines are not run here"),
    (&["dynamo_kvindexer_*"], "`dynamo router` counts its calls as `dynamo_component_router_calls_total`"),
];

/// Does the entry, with its trailing `*`, mean the name?
pub(super) fn means(entry: &str, name: &str) -> bool {
    entry.strip_suffix('*').map_or(entry == name, |start| name.starts_with(start))
}
