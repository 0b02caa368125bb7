// Functions of sampler.cpp for shim.cpp, which catches their exceptions.
#pragma once

#include "shim.h"

anneal_chain * anneal_chain_make(const llama_vocab * vocab, const anneal_chain_params * params);
llama_token    anneal_chain_pick(anneal_chain * chain, const float * logits, size_t n_vocab, const uint32_t * mask);
void           anneal_chain_take(anneal_chain * chain, llama_token token, bool generated);

// Device part of `params`; see anneal_device_chain_set.
llama_sampler * anneal_device_chain_make(
        const llama_context * ctx, const anneal_chain_params & params, anneal_device_end end, uint64_t drawn,
        const llama_token * seen, size_t n_seen);

// Name of one of the chain's samplers without llama.cpp's mark, in static storage.
const char * anneal_device_name(const char * marked);

llama_token anneal_chain_pick_left(anneal_chain * chain, llama_context * ctx, int32_t row);
