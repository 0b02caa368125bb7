// Times one row of flash attention over 28 layers, each with separate K and V (Qwen2.5-1.5B: 12 heads, 2 KV heads, width 128).
// cc -O2 -IPREFIX/include attention-one-row.c -LPREFIX/lib -lggml -lggml-cpu -lggml-base -lstdc++ -lm -lpthread -ldl
// ./a.out POSITIONS THREADS TIMES
#include "ggml.h"
#include "ggml-cpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+t.tv_nsec*1e-9;}
int main(int c,char**v){int nkv=atoi(v[1]),th=atoi(v[2]),it=atoi(v[3]);int D=128,H=12,HK=2;
 struct ggml_init_params p={.mem_size=512u<<20,.mem_buffer=NULL,.no_alloc=false};struct ggml_context*x=ggml_init(p);
 // 28 layers with separate K and V
 int L=28; struct ggml_cgraph*g=ggml_new_graph(x);
 struct ggml_tensor*m=ggml_new_tensor_2d(x,GGML_TYPE_F16,nkv,1);for(int i=0;i<nkv;i++)((ggml_fp16_t*)m->data)[i]=0;
 struct ggml_tensor*o[64];
 for(int l=0;l<L;l++){struct ggml_tensor*q=ggml_new_tensor_3d(x,GGML_TYPE_F32,D,1,H),*k=ggml_new_tensor_3d(x,GGML_TYPE_F16,D,HK,nkv),*w=ggml_new_tensor_3d(x,GGML_TYPE_F16,D,HK,nkv);
  srand(l+1);for(int i=0;i<D*H;i++)((float*)q->data)[i]=rand()/1e9f-1;
  for(int i=0;i<D*HK*nkv;i++){((ggml_fp16_t*)k->data)[i]=ggml_fp32_to_fp16(rand()/1e9f-1);((ggml_fp16_t*)w->data)[i]=ggml_fp32_to_fp16(rand()/1e9f-1);}
  k=ggml_permute(x,k,0,2,1,3);w=ggml_permute(x,w,0,2,1,3);
  o[l]=ggml_flash_attn_ext(x,q,k,w,m,0.08838834f,0,0);ggml_build_forward_expand(g,o[l]);}
 ggml_graph_compute_with_ctx(x,g,th);
 double best=1e9,sum=0;for(int i=0;i<it;i++){double t=now();ggml_graph_compute_with_ctx(x,g,th);t=now()-t;if(t<best)best=t;sum+=t;}
 unsigned h=2166136261u;for(int l=0;l<L;l++)for(int i=0;i<D*H;i++){unsigned b=((unsigned*)o[l]->data)[i];h=(h^b)*16777619u;}
 printf("best %.2f ms mean %.2f ms for %d layers, hash %08x\n",best*1e3,sum/it*1e3,L,h);}
