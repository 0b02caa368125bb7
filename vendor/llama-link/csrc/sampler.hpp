// What sampler.cpp offers shim.cpp, which catches what it throws.
#pragma once

#include "shim.h"

anneal_chain * anneal_chain_make(const llama_vocab * vocab, const anneal_chain_params * params);
llama_token    anneal_chain_pick(anneal_chain * chain, const float * logits, size_t n_vocab, const uint32_t * mask);
void           anneal_chain_take(anneal_chain * chain, llama_token token, bool generated);
