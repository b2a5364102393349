//! Names of metric families, as users of the reference system know them (behaviour.md 11.2), where the meaning is the
//! same.

/// Labels of what a worker reports.
pub mod label {
    pub const NAMESPACE: &str = "dynamo_namespace";
    pub const COMPONENT: &str = "dynamo_component";
    pub const ENDPOINT: &str = "dynamo_endpoint";
    /// Instance id in hexadecimal.
    pub const WORKER_ID: &str = "worker_id";
    pub const DP_RANK: &str = "dp_rank";
    pub const MODEL: &str = "model";
    /// Of the HTTP route: `chat_completions`, `completions`.
    pub const ROUTE: &str = "endpoint";
    /// `stream` or `unary`.
    pub const REQUEST_TYPE: &str = "request_type";
    /// `success` or `error`.
    pub const STATUS: &str = "status";
    pub const ERROR_TYPE: &str = "error_type";
    /// `preprocess`, `route`, `dispatch`.
    pub const STAGE: &str = "stage";
    /// `prefill`, `decode`, `aggregated`.
    pub const PHASE: &str = "phase";
    /// Number of a thread of the async runtime.
    pub const WORKER: &str = "worker";
}

/// Families of the request plane, on both sides.
pub mod plane {
    pub const QUEUE_SECONDS: &str = "dynamo_request_plane_queue_seconds";
    pub const SEND_SECONDS: &str = "dynamo_request_plane_send_seconds";
    pub const ROUNDTRIP_TTFT_SECONDS: &str = "dynamo_request_plane_roundtrip_ttft_seconds";
    pub const INFLIGHT_REQUESTS: &str = "dynamo_request_plane_inflight_requests";
    pub const TCP_POOL_ACTIVE: &str = "dynamo_transport_tcp_pool_active";
    pub const TCP_POOL_IDLE: &str = "dynamo_transport_tcp_pool_idle";
    pub const TCP_BYTES_SENT_TOTAL: &str = "dynamo_transport_tcp_bytes_sent_total";
    pub const TCP_BYTES_RECEIVED_TOTAL: &str = "dynamo_transport_tcp_bytes_received_total";
    pub const TCP_ERRORS_TOTAL: &str = "dynamo_transport_tcp_errors_total";
    pub const TCP_ACCEPT_BACKOFF_TOTAL: &str = "dynamo_transport_tcp_accept_backoff_total";
    pub const NETWORK_TRANSIT_SECONDS: &str = "dynamo_work_handler_network_transit_seconds";
    pub const REQUEST_BYTES_TOTAL: &str = "dynamo_component_request_bytes_total";
    pub const RESPONSE_BYTES_TOTAL: &str = "dynamo_component_response_bytes_total";
}

/// Families of the async runtime.
pub mod executor {
    pub const ALIVE_TASKS: &str = "dynamo_tokio_alive_tasks";
    pub const GLOBAL_QUEUE_DEPTH: &str = "dynamo_tokio_global_queue_depth";
    pub const WORKER_PARK_COUNT_TOTAL: &str = "dynamo_tokio_worker_park_count_total";
    pub const WORKER_BUSY_RATIO: &str = "dynamo_tokio_worker_busy_ratio";
    pub const EVENT_LOOP_DELAY_SECONDS: &str = "dynamo_frontend_event_loop_delay_seconds";
    pub const EVENT_LOOP_STALL_TOTAL: &str = "dynamo_frontend_event_loop_stall_total";
}

/// Families of the frontend.
pub mod frontend {
    pub const ACTIVE_REQUESTS: &str = "dynamo_frontend_active_requests";
    pub const REQUESTS_STARTED_TOTAL: &str = "dynamo_frontend_requests_started_total";
    pub const REQUESTS_TOTAL: &str = "dynamo_frontend_requests_total";
    pub const DISCONNECTED_CLIENTS: &str = "dynamo_frontend_disconnected_clients";
    pub const REQUEST_DURATION_SECONDS: &str = "dynamo_frontend_request_duration_seconds";
    pub const TIME_TO_FIRST_TOKEN_SECONDS: &str = "dynamo_frontend_time_to_first_token_seconds";
    pub const INTER_TOKEN_LATENCY_SECONDS: &str = "dynamo_frontend_inter_token_latency_seconds";
    pub const INPUT_SEQUENCE_TOKENS: &str = "dynamo_frontend_input_sequence_tokens";
    pub const OUTPUT_SEQUENCE_TOKENS: &str = "dynamo_frontend_output_sequence_tokens";
    pub const CACHED_TOKENS: &str = "dynamo_frontend_cached_tokens";
    pub const OUTPUT_TOKENS_TOTAL: &str = "dynamo_frontend_output_tokens_total";
    pub const TOKENIZE_SECONDS: &str = "dynamo_frontend_tokenize_seconds";
    pub const TEMPLATE_SECONDS: &str = "dynamo_frontend_template_seconds";
    pub const STAGE_REQUESTS: &str = "dynamo_frontend_stage_requests";
    pub const STAGE_DURATION_SECONDS: &str = "dynamo_frontend_stage_duration_seconds";
    pub const MODEL_READY: &str = "dynamo_frontend_model_ready";
    pub const MODEL_TOTAL_KV_BLOCKS: &str = "dynamo_frontend_model_total_kv_blocks";
    pub const MODEL_MAX_NUM_SEQS: &str = "dynamo_frontend_model_max_num_seqs";
    pub const MODEL_MAX_NUM_BATCHED_TOKENS: &str = "dynamo_frontend_model_max_num_batched_tokens";
    pub const MODEL_CONTEXT_LENGTH: &str = "dynamo_frontend_model_context_length";
    pub const MODEL_KV_CACHE_BLOCK_SIZE: &str = "dynamo_frontend_model_kv_cache_block_size";
    pub const MODEL_CANCELLATION_TOTAL: &str = "dynamo_frontend_model_cancellation_total";
    pub const MODEL_REJECTION_TOTAL: &str = "dynamo_frontend_model_rejection_total";
    pub const WORKER_ACTIVE_DECODE_BLOCKS: &str = "dynamo_frontend_worker_active_decode_blocks";
    pub const WORKER_ACTIVE_PREFILL_TOKENS: &str = "dynamo_frontend_worker_active_prefill_tokens";
    pub const WORKER_LAST_TTFT_SECONDS: &str = "dynamo_frontend_worker_last_time_to_first_token_seconds";
    pub const WORKER_LAST_INPUT_TOKENS: &str = "dynamo_frontend_worker_last_input_sequence_tokens";
    pub const WORKER_LAST_ITL_SECONDS: &str = "dynamo_frontend_worker_last_inter_token_latency_seconds";
    pub const INFLIGHT_REQUESTS: &str = "dynamo_frontend_inflight_requests";
    pub const QUEUED_REQUESTS: &str = "dynamo_frontend_queued_requests";
    pub const TOKENIZER_LATENCY_MS: &str = "dynamo_frontend_tokenizer_latency_ms";
    pub const TOKENIZER_CACHE_HITS_TOTAL: &str = "dynamo_frontend_tokenizer_cache_hits_total";
    pub const TOKENIZER_CACHE_MISSES_TOTAL: &str = "dynamo_frontend_tokenizer_cache_misses_total";
    pub const TOKENIZER_CACHE_CACHED_TOKENS_TOTAL: &str =
        "dynamo_frontend_tokenizer_cache_cached_tokens_total";
    pub const TOKENIZER_CACHE_UNCACHED_TOKENS_TOTAL: &str =
        "dynamo_frontend_tokenizer_cache_uncached_tokens_total";
    pub const EMBEDDING_LATENCY_SECONDS: &str = "dynamo_frontend_embedding_latency_seconds";
    pub const MODEL_MIGRATION_LIMIT: &str = "dynamo_frontend_model_migration_limit";
    pub const ROUTER_ADMISSION_RECEIVED_TOTAL: &str = "dynamo_frontend_router_admission_received_total";
    pub const ROUTER_ADMISSION_REJECTED_TOTAL: &str = "dynamo_frontend_router_admission_rejected_total";
}

/// Families of the router. The doubled `component_router` is how users know them.
pub mod router {
    pub const REQUESTS_STARTED_TOTAL: &str = "dynamo_component_router_requests_started_total";
    pub const REQUESTS_TOTAL: &str = "dynamo_component_router_requests_total";
    pub const TIME_TO_FIRST_TOKEN_SECONDS: &str = "dynamo_component_router_time_to_first_token_seconds";
    pub const INTER_TOKEN_LATENCY_SECONDS: &str = "dynamo_component_router_inter_token_latency_seconds";
    pub const OUTPUT_SEQUENCE_TOKENS: &str = "dynamo_component_router_output_sequence_tokens";
    pub const KV_WORKER_REUSED_TOKENS_TOTAL: &str = "dynamo_component_router_kv_worker_reused_tokens_total";
    pub const OVERLAP_BLOCKS_LOST: &str = "dynamo_component_router_overlap_blocks_lost";
    pub const OVERHEAD_SEQ_HASHING_MS: &str = "dynamo_router_overhead_seq_hashing_ms";
    pub const INPUT_SEQUENCE_TOKENS: &str = "dynamo_component_router_input_sequence_tokens";
    pub const KV_SELECTED_CACHED_PREFIX_TOKENS_TOTAL: &str =
        "dynamo_component_router_kv_selected_cached_prefix_tokens_total";
    pub const KV_BEST_ELIGIBLE_CACHED_PREFIX_TOKENS_TOTAL: &str =
        "dynamo_component_router_kv_best_eligible_cached_prefix_tokens_total";
    pub const NON_MAX_OVERLAP_SELECTIONS_TOTAL: &str =
        "dynamo_component_router_non_max_overlap_selections_total";
    pub const KV_HIT_RATE: &str = "dynamo_component_router_kv_hit_rate";
    pub const WORKER_REGISTERED: &str = "dynamo_component_router_worker_registered";
    pub const KV_CACHE_EVENTS_APPLIED: &str = "dynamo_component_kv_cache_events_applied";
    pub const OVERHEAD_BLOCK_HASHING_MS: &str = "dynamo_router_overhead_block_hashing_ms";
    pub const OVERHEAD_FIND_MATCHES_MS: &str = "dynamo_router_overhead_indexer_find_matches_ms";
    pub const OVERHEAD_SCHEDULING_MS: &str = "dynamo_router_overhead_scheduling_ms";
    pub const OVERHEAD_TOTAL_MS: &str = "dynamo_router_overhead_total_ms";
    /// Nodes of the prefix index (R34); ours.
    pub const INDEX_NODES: &str = "dynamo_component_router_index_nodes";
    /// Bytes of the prefix index (R34); ours.
    pub const INDEX_BYTES: &str = "dynamo_component_router_index_bytes";
}

/// Families of a worker.
pub mod component {
    pub const REQUESTS_TOTAL: &str = "dynamo_component_requests_total";
    pub const INFLIGHT_REQUESTS: &str = "dynamo_component_inflight_requests";
    pub const REQUEST_DURATION_SECONDS: &str = "dynamo_component_request_duration_seconds";
    pub const ERRORS_TOTAL: &str = "dynamo_component_errors_total";
    pub const CANCELLATION_TOTAL: &str = "dynamo_component_cancellation_total";
    pub const UPTIME_SECONDS: &str = "dynamo_component_uptime_seconds";
    pub const MODEL_LOAD_TIME_SECONDS: &str = "dynamo_component_model_load_time_seconds";
    pub const TOTAL_BLOCKS: &str = "dynamo_component_total_blocks";
    pub const GPU_CACHE_USAGE_PERCENT: &str = "dynamo_component_gpu_cache_usage_percent";
    pub const KV_CACHE_HIT_RATE: &str = "dynamo_component_kv_cache_hit_rate";
    pub const DRAIN_TIME_SECONDS: &str = "dynamo_component_drain_time_seconds";
    pub const TIME_TO_FIRST_RESPONSE_SECONDS: &str = "dynamo_work_handler_time_to_first_response_seconds";
    pub const ENGINE_REQUEST: &str = "dynamo_engine_request";
    pub const REQUEST_QUEUE: &str = "dynamo_request_queue";
    pub const REJECTION_REQUEST_TOTAL: &str = "dynamo_rejection_request_total";
    /// Ours, as is the next.
    pub const HEALTH_CHECKS_TOTAL: &str = "dynamo_component_health_checks_total";
    pub const HEALTH_CHECKS_FAILED_TOTAL: &str = "dynamo_component_health_checks_failed_total";
}
