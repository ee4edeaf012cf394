// SPDX-License-Identifier: GPL-2.0
/*
 * Static inlines and macros that Rust cannot call. One kernel expression each:
 * what they mean for vramio is decided in Rust.
 */
#include <linux/blk-integrity.h>
#include <linux/blkdev.h>
#include <linux/completion.h>
#include <linux/fiemap.h>
#include <linux/fileattr.h>
#include <linux/fs.h>
#include <linux/io_uring/cmd.h>
#include <linux/iommu.h>
#include <linux/ioprio.h>
#include <linux/memory_hotplug.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/pagemap.h>
#include <linux/pci-p2pdma.h>
#include <linux/pci.h>
#include <linux/sched/signal.h>
#include <linux/semaphore.h>
#include <linux/swiotlb.h>
#include <linux/version.h>

/* --- pages --- */

bool vramio_is_p2pdma_page(const struct page *page)
{
	return is_pci_p2pdma_page(page);
}

struct dev_pagemap *vramio_page_pgmap(const struct page *page)
{
	return page_pgmap(page);
}

unsigned long vramio_page_to_pfn(const struct page *page)
{
	return page_to_pfn(page);
}

struct page *vramio_pfn_to_page(unsigned long pfn)
{
	return pfn_to_page(pfn);
}

phys_addr_t vramio_pfn_phys(unsigned long pfn)
{
	return PFN_PHYS(pfn);
}

/* Whether the frame is one of host memory. */
bool vramio_pfn_is_ram(unsigned long pfn)
{
	return pfn_to_online_page(pfn) != NULL;
}

bool vramio_pgmap_is_p2pdma(const struct dev_pagemap *pgmap)
{
	return pgmap->type == MEMORY_DEVICE_PCI_P2PDMA;
}

/* Whether `count` page frames from `pfn` on lie in one of the pgmap's ranges. */
bool vramio_pgmap_holds(const struct dev_pagemap *pgmap, u64 pfn, u64 count)
{
	int i;

	for (i = 0; i < pgmap->nr_range; i++) {
		u64 first = PHYS_PFN(pgmap->ranges[i].start);
		u64 end = PHYS_PFN(pgmap->ranges[i].end + 1);

		if (pfn >= first && pfn < end && count <= end - pfn)
			return true;
	}
	return false;
}

void vramio_put_pgmap(struct dev_pagemap *pgmap)
{
	put_dev_pagemap(pgmap);
}

/* --- the current task --- */

bool vramio_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}

struct mm_struct *vramio_current_mm(void)
{
	return current->mm;
}

int vramio_current_ioprio(void)
{
	return get_current_ioprio();
}

/* Bytes of read bios that this task submitted. */
u64 vramio_task_read_bytes(void)
{
	return current->ioac.read_bytes;
}

/* Bytes that this task wrote directly, or dirtied in the page cache. */
u64 vramio_task_write_bytes(void)
{
	return current->ioac.write_bytes;
}

/* Pages that this task dirtied since it was last throttled. */
int vramio_task_dirtied(void)
{
	return current->nr_dirtied;
}

void vramio_cond_resched(void)
{
	cond_resched();
}

unsigned long vramio_jiffies(void)
{
	return jiffies;
}

void vramio_init_completion(struct completion *done)
{
	init_completion(done);
}

void vramio_sema_init(struct semaphore *sem, int count)
{
	sema_init(sem, count);
}

bool vramio_range_blockable(const struct mmu_notifier_range *range)
{
	return mmu_notifier_range_blockable(range);
}

/* --- files --- */

umode_t vramio_file_type(const struct file *file)
{
	return file_inode(file)->i_mode & S_IFMT;
}

loff_t vramio_file_size(const struct file *file)
{
	return i_size_read(file->f_mapping->host);
}

unsigned int vramio_file_mode(const struct file *file)
{
	return (__force unsigned int)file->f_mode;
}

unsigned long vramio_file_magic(const struct file *file)
{
	return file_inode(file)->i_sb->s_magic;
}

bool vramio_file_dax(const struct file *file)
{
	return IS_DAX(file->f_mapping->host);
}

bool vramio_file_encrypted(const struct file *file)
{
	return IS_ENCRYPTED(file_inode(file));
}

bool vramio_file_verity(const struct file *file)
{
	return IS_VERITY(file_inode(file));
}

bool vramio_file_stable_writes(const struct file *file)
{
	return mapping_stable_writes(file->f_mapping);
}

/* Size, blocks and direct I/O alignments. */
int vramio_file_statx(const struct file *file, struct kstat *stat)
{
	return vfs_getattr_nosec(&file->f_path, stat, STATX_BASIC_STATS | STATX_DIOALIGN, 0);
}

/* 1 if the file is on a realtime device, 0 if not, or a negative errno. */
int vramio_file_realtime(const struct file *file)
{
	struct file_kattr attr = {};
	int ret = vfs_fileattr_get(file->f_path.dentry, &attr);

	return ret ?: !!(attr.fsx_xflags & FS_XFLAG_REALTIME);
}

/* The device below a block device node or a file system on one; else NULL. */
struct block_device *vramio_file_bdev(const struct file *file)
{
	struct inode *inode = file->f_mapping->host;

	return S_ISBLK(inode->i_mode) ? I_BDEV(inode) : inode->i_sb->s_bdev;
}

/*
 * Has the file system read the mapping of a range into memory, so that a read
 * which follows submits data alone. With room for no extent, fiemap counts.
 */
int vramio_file_warm_mapping(struct file *file, u64 start, u64 len)
{
	struct inode *inode = file_inode(file);
	struct fiemap_extent_info info = {};

	if (!inode->i_op->fiemap)
		return -EOPNOTSUPP;
	return inode->i_op->fiemap(inode, &info, start, len);
}

void vramio_kiocb_end_write(struct kiocb *iocb)
{
	kiocb_end_write(iocb);
}

/* --- block devices --- */

bool vramio_bdev_takes_p2pdma(struct block_device *bdev)
{
	return blk_queue_pci_p2pdma(bdev_get_queue(bdev));
}

bool vramio_bdev_has_integrity(struct block_device *bdev)
{
	return bdev_get_integrity(bdev) != NULL;
}

bool vramio_bdev_stable_writes(struct block_device *bdev)
{
	return bdev_stable_writes(bdev);
}

bool vramio_bdev_merges(struct block_device *bdev)
{
	return !blk_queue_nomerges(bdev_get_queue(bdev));
}

unsigned int vramio_bdev_mem_align(struct block_device *bdev)
{
	return bdev_dma_alignment(bdev) + 1;
}

unsigned int vramio_bdev_offset_align(struct block_device *bdev)
{
	return bdev_logical_block_size(bdev);
}

/* Most bytes that the block layer does not split. */
u64 vramio_bdev_max_bytes(struct block_device *bdev)
{
	return (u64)queue_max_sectors(bdev_get_queue(bdev)) << SECTOR_SHIFT;
}

/* The PCI function that a disk hangs on; no reference is taken. */
struct pci_dev *vramio_bdev_pci(struct block_device *bdev)
{
	struct device *dev = disk_to_dev(bdev->bd_disk);

	while (dev && !dev_is_pci(dev))
		dev = dev->parent;
	return dev ? to_pci_dev(dev) : NULL;
}

/* --- PCI and DMA --- */

struct pci_dev *vramio_pci_upstream_bridge(struct pci_dev *pdev)
{
	return pci_upstream_bridge(pdev);
}

u32 vramio_pci_domain(struct pci_dev *pdev)
{
	return pci_domain_nr(pdev->bus);
}

u16 vramio_pci_devid(struct pci_dev *pdev)
{
	return pci_dev_id(pdev);
}

/* Whether `addr` lies in one of the device's memory BARs. */
bool vramio_pci_owns(struct pci_dev *pdev, phys_addr_t addr)
{
	struct resource *res;
	int bar;

	for (bar = 0; bar < PCI_STD_NUM_BARS; bar++) {
		res = &pdev->resource[bar];
		if (resource_type(res) == IORESOURCE_MEM && resource_size(res) &&
		    addr >= res->start && addr <= res->end)
			return true;
	}
	return false;
}

/* A BAR that is in use, and memory. */
bool vramio_pci_bar(struct pci_dev *pdev, int bar, u64 *phys, u64 *bus, u64 *len)
{
	struct resource *res = &pdev->resource[bar];

	if (resource_type(res) != IORESOURCE_MEM || !res->parent || !resource_size(res))
		return false;
	*phys = res->start;
	*bus = pci_bus_address(pdev, bar);
	*len = resource_size(res);
	return true;
}

/* The physical address of a DMA address of the device. */
phys_addr_t vramio_pci_iova_to_phys(struct pci_dev *pdev, dma_addr_t addr)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(&pdev->dev);

	return domain ? iommu_iova_to_phys(domain, addr) : addr;
}

/*
 * The driver core's state of the binding. device_links_busy() sets UNBINDING
 * before the bus is told, whether or not there are links.
 */
bool vramio_pci_bound(struct pci_dev *pdev)
{
	enum dl_dev_state state = READ_ONCE(pdev->dev.links.status);

	return state == DL_DEV_PROBING || state == DL_DEV_DRIVER_BOUND;
}

/* Whether the device's DMA addresses are translated by an IOMMU. */
bool vramio_pci_translated(struct pci_dev *pdev)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(&pdev->dev);

	return domain && (domain->type & __IOMMU_DOMAIN_PAGING);
}

bool vramio_pci_swiotlb_forced(struct pci_dev *pdev)
{
	return is_swiotlb_force_bounce(&pdev->dev);
}

/* --- io_uring --- */

struct file *vramio_uring_file(const struct io_uring_cmd *cmd)
{
	return cmd->file;
}

u32 vramio_uring_op(const struct io_uring_cmd *cmd)
{
	return cmd->cmd_op;
}

/* The 80 bytes of a big submission entry, or NULL if the entry is a small one. */
const void *vramio_uring_payload(const struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	return issue_flags & IO_URING_F_SQE128 ? cmd->sqe->cmd : NULL;
}

bool vramio_uring_may_wait(unsigned int issue_flags)
{
	return !(issue_flags & IO_URING_F_NONBLOCK);
}

bool vramio_uring_is_cancel(unsigned int issue_flags)
{
	return issue_flags & IO_URING_F_CANCEL;
}

bool vramio_uring_big_cqe(unsigned int issue_flags)
{
	return issue_flags & IO_URING_F_CQE32;
}

/* Room for one pointer of ours in the command. */
void **vramio_uring_pdu(struct io_uring_cmd *cmd)
{
	return io_uring_cmd_to_pdu(cmd, void *);
}

void vramio_uring_mark_cancelable(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	io_uring_cmd_mark_cancelable(cmd, issue_flags);
}

void vramio_uring_done(struct io_uring_cmd *cmd, s32 res, unsigned int issue_flags)
{
	io_uring_cmd_done(cmd, res, issue_flags);
}

void vramio_uring_done32(struct io_uring_cmd *cmd, s32 res, u64 extra, unsigned int issue_flags)
{
	io_uring_cmd_done32(cmd, res, extra, issue_flags);
}

/* In uring.rs: goes on with a command in the task that issued it. */
void vramio_uring_go_on(struct io_uring_cmd *cmd, unsigned int issue_flags, bool dying);

static void vramio_uring_task_work(struct io_tw_req req, io_tw_token_t tw)
{
	vramio_uring_go_on(io_uring_cmd_from_tw(req), IO_URING_CMD_TASK_WORK_ISSUE_FLAGS,
			   tw.cancel);
}

void vramio_uring_in_task(struct io_uring_cmd *cmd)
{
	io_uring_cmd_complete_in_task(cmd, vramio_uring_task_work);
}
