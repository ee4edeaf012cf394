/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The published interface between nvidia-fs and storage drivers, as the drivers of
 * this directory see it. Two forms: a request piece by piece, and a scatter list.
 */
#ifndef VRAMIO_TEST_OPS_H
#define VRAMIO_TEST_OPS_H

#include <linux/bits.h>
#include <linux/dma-mapping.h>

struct blk_dma_iter;
struct request;
struct request_queue;
struct scatterlist;

/* What a table has: bits of ft_bmap. */
#define FT_PREP_SGLIST		BIT_ULL(0)
#define FT_MAP_SGLIST		BIT_ULL(1)
#define FT_IS_GPU_PAGE		BIT_ULL(2)
#define FT_DEVICE_PRIORITY	BIT_ULL(3)
#define FT_RDMA_INFO		BIT_ULL(4)
#define FT_ITER_START		BIT_ULL(5)
#define FT_ITER_NEXT		BIT_ULL(6)

struct nvfs_dma_rw_ops {
	unsigned long long ft_bmap;
	int (*blk_rq_map_sg)(struct request_queue *q, struct request *req, struct scatterlist *sgl);
	int (*dma_map_sg_attrs)(struct device *dev, struct scatterlist *sgl, int nents,
				enum dma_data_direction dir, unsigned long attrs);
	int (*unmap_sg)(struct device *dev, struct scatterlist *sgl, int nents,
			    enum dma_data_direction dir);
	bool (*is_gpu_page)(struct page *page);
	unsigned int (*gpu_index)(struct page *page);
	unsigned int (*device_priority)(struct device *dev, unsigned int gpu_index);
	int (*get_gpu_sglist_rdma_info)(struct scatterlist *sgl, int nents, void *info);
};

struct nvfs_dma_rw_blk_iter_ops {
	unsigned long long ft_bmap;
	int (*blk_rq_dma_map_iter_start)(struct request *req, struct device *dev,
					 struct dma_iova_state *state, struct blk_dma_iter *iter,
					 void **cookie);
	int (*blk_rq_dma_map_iter_next)(struct request *req, struct device *dev,
					struct dma_iova_state *state, struct blk_dma_iter *iter);
	int (*unmap_page)(struct device *dev, void *cookie, dma_addr_t addr, size_t size,
			      enum dma_data_direction dir);
	bool (*is_gpu_page)(struct page *page);
	unsigned int (*gpu_index)(struct page *page);
	unsigned int (*device_priority)(struct device *dev, unsigned int gpu_index);
	int (*get_gpu_sglist_rdma_info)(struct scatterlist *sgl, int nents, void *info);
};

#endif
