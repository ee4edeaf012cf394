// SPDX-License-Identifier: GPL-2.0
/*
 * Hooks of storage drivers that cannot be served, each for a reason of its own; and if
 * one of their functions is called that should not be, the log has a WARN.
 */
#include <linux/errno.h>
#include <linux/module.h>

#include "ops.h"

int scatefs_register_nvfs_dma_ops(struct nvfs_dma_rw_ops *ops);
void scatefs_unregister_nvfs_dma_ops(void);
int beegfs_v1_register_nvfs_dma_ops(struct nvfs_dma_rw_ops *ops);
int sfxv_v1_register_nvfs_dma_ops(struct nvfs_dma_rw_ops *ops);
void sfxv_v1_unregister_nvfs_dma_ops(void);
int ibm_scale_v1_register_nvfs_dma_ops(struct nvfs_dma_rw_ops *ops);
void ibm_scale_v1_unregister_nvfs_dma_ops(void);

/* Not exported for GPL modules: the kernel hands neither out. */
int scatefs_register_nvfs_dma_ops(struct nvfs_dma_rw_ops *ops)
{
	WARN(1, "scatefs: called");
	return 0;
}
EXPORT_SYMBOL(scatefs_register_nvfs_dma_ops);

void scatefs_unregister_nvfs_dma_ops(void)
{
	WARN(1, "scatefs: called");
}
EXPORT_SYMBOL(scatefs_unregister_nvfs_dma_ops);

/* Without a counterpart. */
int beegfs_v1_register_nvfs_dma_ops(struct nvfs_dma_rw_ops *ops)
{
	WARN(1, "beegfs: called");
	return 0;
}
EXPORT_SYMBOL_GPL(beegfs_v1_register_nvfs_dma_ops);

/* Says no: it wants what our table does not have. */
int sfxv_v1_register_nvfs_dma_ops(struct nvfs_dma_rw_ops *ops)
{
	return ops->ft_bmap & FT_RDMA_INFO ? 0 : -EOPNOTSUPP;
}
EXPORT_SYMBOL_GPL(sfxv_v1_register_nvfs_dma_ops);

void sfxv_v1_unregister_nvfs_dma_ops(void)
{
	WARN(1, "sfxv: called");
}
EXPORT_SYMBOL_GPL(sfxv_v1_unregister_nvfs_dma_ops);

/* We have no table for it. */
int ibm_scale_v1_register_nvfs_dma_ops(struct nvfs_dma_rw_ops *ops)
{
	WARN(1, "ibm_scale: called");
	return 0;
}
EXPORT_SYMBOL_GPL(ibm_scale_v1_register_nvfs_dma_ops);

void ibm_scale_v1_unregister_nvfs_dma_ops(void)
{
	WARN(1, "ibm_scale: called");
}
EXPORT_SYMBOL_GPL(ibm_scale_v1_unregister_nvfs_dma_ops);

MODULE_DESCRIPTION("Test: hooks of storage drivers that cannot be served");
MODULE_LICENSE("GPL");
