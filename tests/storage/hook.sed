# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Turns the stock kernel's NVMe driver (drivers/nvme/host/pci.c) into one that asks
# before it maps, as a vendor's build does: see hook.h. Each line that is looked for is
# there once (the request's next piece: twice); Kbuild counts what came of it.

s/^#include "nvme.h"$/&\n#include "hook.h"/
s/^	unsigned int nr_dma_vecs;$/&\n	struct hook hook;/

# The request's first piece. (The goto passes the choice by the kernel's kind of mapping.)
/^	if (blk_rq_nr_phys_segments(req) == 1) {$/i\
	switch (hook_start(&iod->hook, req, dev->dev, &iod->dma_state, &iter)) {\
	case HOOK_MAPPED:\
		goto hook_mapped;\
	case HOOK_FAILED:\
		return iter.status;\
	case HOOK_OTHERS:\
		break;\
	}
/^	if (use_sgl == SGL_FORCED ||$/i\
hook_mapped:

# The others.
s/blk_rq_dma_map_iter_next(req, /hook_next(\&((struct nvme_iod *)blk_mq_rq_to_pdu(req))->hook, req, /

# What the hook mapped is not the driver's to unmap.
s/^	    (iod->flags & IOD_DATA_P2P))$/	    (iod->flags \& IOD_DATA_P2P) || hook_has(\&iod->hook))/
s/^	if (!blk_rq_dma_unmap(req, dev, state, iter->len, iter->p2pdma.map)) {$/	if (hook_unmap(\&((struct nvme_iod *)blk_mq_rq_to_pdu(req))->hook, req, dev, state))\
		return;\
&/
/^	if (iod->flags & IOD_SINGLE_SEGMENT) {$/i\
	if (hook_unmap(&iod->hook, req, dma_dev, &iod->dma_state)) {\
		if (iod->nr_descriptors)\
			nvme_free_descriptors(req);\
		return;\
	}

# Another name.
s/"nvme",$/"vramio_nvme",/
