// SPDX-License-Identifier: GPL-2.0
/*
 * Static inlines and macros that Rust cannot call. One kernel expression each:
 * what they mean for vramio is decided in Rust.
 */
#include <linux/blk-integrity.h>
#include <linux/blk-mq-dma.h>
#include <linux/blkdev.h>
#include <linux/completion.h>
#include <linux/dma-mapping.h>
#include <linux/fiemap.h>
#include <linux/fileattr.h>
#include <linux/fs.h>
#include <linux/io_uring/cmd.h>
#include <linux/iommu.h>
#include <linux/ioprio.h>
#include <linux/kernfs.h>
#include <linux/kprobes.h>
#include <linux/memory_hotplug.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pagemap.h>
#include <linux/pci-p2pdma.h>
#include <linux/pci.h>
#include <linux/percpu.h>
#include <linux/sched/signal.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/swiotlb.h>
#include <linux/timekeeping.h>
#include <linux/sysfs.h>
#include <linux/timex.h>
#include <linux/version.h>
#include <asm/tsc.h>

#include "stats.h"
#include "trace.h"

/* Words of vramio_file_look(). */
#define VRAMIO_LOOK 12
/* In the sixth of them: the disk is gone. */
#define VRAMIO_LOOK_GONE BIT_ULL(63)

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

/* The page `n` pages further on, of the same pgmap. */
struct page *vramio_page_after(struct page *page, unsigned long n)
{
	return page + n;
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

/* Also for a thread of io_uring, which takes the signal off before it ends. */
bool vramio_fatal_signal_pending(void)
{
	return fatal_signal_pending(current) ||
	       READ_ONCE(current->signal->flags) & SIGNAL_GROUP_EXIT;
}

struct mm_struct *vramio_current_mm(void)
{
	return current->mm;
}

/* The real user. */
u32 vramio_current_uid(void)
{
	return from_kuid(&init_user_ns, current_uid());
}

#ifdef VRAMIO_TEST
/* A set bit leaves a part of the merge barrier out (barrier.rs). */
static unsigned int barrier_off;
module_param_unsafe(barrier_off, uint, 0600);
MODULE_PARM_DESC(barrier_off, "Parts of the merge barrier to leave out; corrupts data");

unsigned int vramio_barrier_off(void)
{
	return READ_ONCE(barrier_off);
}
#endif

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

/*
 * Changes when this task dirties a page of the page cache: pages since it was
 * last throttled, and when that was.
 */
u64 vramio_task_dirtied(void)
{
	return (u64)current->dirty_paused_when << 32 ^ (u32)current->nr_dirtied;
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

bool vramio_range_blockable(const struct mmu_notifier_range *range)
{
	return mmu_notifier_range_blockable(range);
}

/* --- files --- */

/* The file system's registered name. */
const char *vramio_file_fs_name(const struct file *file)
{
	return file_inode(file)->i_sb->s_type->name;
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

/* The attributes that chattr and xfs_io change. */
int vramio_file_attributes(const struct file *file, u32 *flags, u32 *xflags)
{
	struct file_kattr attr = {};
	int ret = vfs_fileattr_get(file->f_path.dentry, &attr);

	*flags = attr.flags;
	*xflags = attr.fsx_xflags;
	return ret;
}

/*
 * The time of the last change of an inode. With multigrain timestamps of
 * nanoseconds, two changes have the same one only when nobody asked in between.
 */
u64 vramio_file_change(const struct file *file)
{
	const struct inode *inode = file->f_mapping->host;

	return (u64)inode_get_ctime_sec(inode) << 30 ^ inode_get_ctime_nsec(inode);
}

/* Whether the disk was taken away, as by hot-unplug. Then it has a size of 0. */
static bool is_gone(const struct block_device *bdev)
{
	return test_bit(GD_DEAD, &bdev->bd_disk->state);
}

/*
 * A file by plain loads. The first eight words are what a verdict on it depends on
 * (rust/verdict.rs), the others what a request asks (rust/target.rs).
 */
void vramio_file_look(const struct file *file, u64 look[VRAMIO_LOOK])
{
	const struct address_space *mapping = file->f_mapping;
	struct inode *inode = mapping->host;
	bool block = S_ISBLK(inode->i_mode);
	struct block_device *bdev = block ? I_BDEV(inode) : inode->i_sb->s_bdev;

	look[0] = (unsigned long)file_inode(file);
	look[1] = inode->i_ino;
	look[2] = (u64)inode->i_generation << 32 |
		  (inode->i_flags & (S_DAX | S_ENCRYPTED | S_VERITY)) |
		  (mapping_stable_writes(mapping) ? BIT(31) : 0);
	look[3] = (unsigned long)READ_ONCE(mapping->a_ops);
	look[4] = (unsigned long)bdev;
	if (bdev) {
		const struct request_queue *q = bdev_get_queue(bdev);

		look[5] = bdev->bd_disk->diskseq | (is_gone(bdev) ? VRAMIO_LOOK_GONE : 0);
		look[6] = (u64)READ_ONCE(q->limits.features) << 32 | q->limits.dma_alignment;
		look[7] = (u64)q->limits.integrity.metadata_size << 32 |
			  q->limits.logical_block_size << 1 | blk_queue_nomerges(q);
	} else {
		look[5] = look[6] = look[7] = 0;
	}
	look[8] = (u64)(inode->i_mode & S_IFMT) << 32 | (__force u32)file->f_mode;
	look[9] = i_size_read(inode);
	look[10] = inode->i_blocks;
	look[11] = vramio_file_change(file);
}

/* How far the current task may write: generic_write_checks() cuts a write there. */
u64 vramio_file_limit(const struct file *file)
{
	u64 limit = min_t(u64, rlimit(RLIMIT_FSIZE), file->f_mapping->host->i_sb->s_maxbytes);

	return file->f_flags & O_LARGEFILE ? limit : min_t(u64, limit, MAX_NON_LFS);
}

bool vramio_file_cached(const struct file *file)
{
	return READ_ONCE(file->f_mapping->nrpages) != 0;
}

/* With relatime: whether the time of the last access is surely not due, for an hour. */
static bool accessed_lately(const struct file *file)
{
	const struct inode *inode = file_inode(file);
	struct timespec64 access = inode_get_atime(inode);
	struct timespec64 modification = inode_get_mtime(inode);
	struct timespec64 change = inode_get_ctime(inode);

	return (file->f_path.mnt->mnt_flags & MNT_RELATIME) &&
	       timespec64_compare(&modification, &access) < 0 &&
	       timespec64_compare(&change, &access) < 0 &&
	       ktime_get_real_seconds() - access.tv_sec < 23 * 60 * 60;
}

/*
 * Does what a read does to the time of the last access. Nearly always that is
 * nothing, and to find that out, once more than the file system, would be most of
 * the cost.
 */
void vramio_file_accessed(struct file *file)
{
	if (!accessed_lately(file))
		file_accessed(file);
}

/* The device below a block device node or a file system on one; else NULL. */
struct block_device *vramio_file_bdev(const struct file *file)
{
	struct inode *inode = file->f_mapping->host;

	return S_ISBLK(inode->i_mode) ? I_BDEV(inode) : inode->i_sb->s_bdev;
}

/* Whether the disk below a file is gone. */
bool vramio_file_gone(const struct file *file)
{
	struct block_device *bdev = vramio_file_bdev(file);

	return bdev && is_gone(bdev);
}

/*
 * Counts the extents of a range, or a negative errno. It has the file system read
 * the mapping into memory, so that a read which follows submits data alone. With
 * room for no extent, fiemap counts.
 */
int vramio_file_count_extents(struct file *file, u64 start, u64 len)
{
	struct inode *inode = file_inode(file);
	struct fiemap_extent_info info = {};

	if (!inode->i_op->fiemap)
		return -EOPNOTSUPP;
	return inode->i_op->fiemap(inode, &info, start, len) ?: info.fi_extents_mapped;
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

bool vramio_bdev_nowait(struct block_device *bdev)
{
	return bdev_nowait(bdev);
}

/* The whole disk's device. */
struct device *vramio_bdev_disk(struct block_device *bdev)
{
	return disk_to_dev(bdev->bd_disk);
}

/* A device of the block class as a block device. */
struct block_device *vramio_dev_bdev(struct device *dev)
{
	return dev_to_bdev(dev);
}

const char *vramio_dev_name(const struct device *dev)
{
	return dev_name(dev);
}

/* The PCI function that a device hangs on; no reference is taken. */
struct pci_dev *vramio_dev_pci(struct device *dev)
{
	while (dev && !dev_is_pci(dev))
		dev = dev->parent;
	return dev ? to_pci_dev(dev) : NULL;
}

static bool links_to(struct kernfs_node *dir, struct kobject *to, const char *name)
{
	struct kernfs_node *link = sysfs_get_dirent(dir, name);
	bool found = link && kernfs_type(link) == KERNFS_LINK && link->symlink.target_kn == to->sd;

	sysfs_put(link);
	return found;
}

/* The directory that names the members of a stacked disk; with a reference. */
struct kernfs_node *vramio_disk_slaves(struct device *disk)
{
	struct kobject *dir = dev_to_disk(disk)->slave_dir;

	return dir ? sysfs_get(dir->sd) : NULL;
}

/* Whether such a directory names the device. */
bool vramio_is_slave(struct kernfs_node *slaves, struct device *dev)
{
	return links_to(slaves, &dev->kobj, dev_name(dev));
}

/* Counts the entries that were added to and removed from a directory. */
unsigned long vramio_dir_changes(const struct kernfs_node *dir)
{
	return READ_ONCE(dir->dir.rev);
}

/*
 * Whether the controller of the NVMe path disk @path belongs to the subsystem of
 * the multipath disk @head, which has a link to each of its controllers.
 */
bool vramio_is_nvme_path(struct device *head, struct device *path)
{
	struct device *subsystem = head->parent, *controller = path->parent;

	return subsystem && controller && subsystem->kobj.sd && controller->kobj.sd &&
	       links_to(subsystem->kobj.sd, &controller->kobj, dev_name(controller));
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

/* A virtual function has no such bit: its memory is its physical function's. */
bool vramio_pci_decodes_memory(struct pci_dev *pdev)
{
	u16 command = 0;

	pci_read_config_word(pdev, PCI_COMMAND, &command);
	return !PCI_POSSIBLE_ERROR(command) &&
	       (pdev->no_command_memory || command & PCI_COMMAND_MEMORY);
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

bool vramio_uring_big_cqe(unsigned int issue_flags)
{
	return issue_flags & IO_URING_F_CQE32;
}

/* Room for one pointer of ours in the command. */
void **vramio_uring_pdu(struct io_uring_cmd *cmd)
{
	return io_uring_cmd_to_pdu(cmd, void *);
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

/* --- storage drivers' callbacks --- */

void vramio_spin_init(raw_spinlock_t *lock)
{
	raw_spin_lock_init(lock);
}

unsigned long vramio_spin_lock(raw_spinlock_t *lock)
{
	unsigned long flags;

	raw_spin_lock_irqsave(lock, flags);
	return flags;
}

void vramio_spin_unlock(raw_spinlock_t *lock, unsigned long flags)
{
	raw_spin_unlock_irqrestore(lock, flags);
}

bool vramio_in_task(void)
{
	return in_task();
}

bool vramio_within_module(unsigned long addr, const struct module *mod)
{
	return within_module(addr, mod);
}

/*
 * Whether the kernel knows a function by this name, exported or not. A probe that is
 * never armed is the one exported way to ask.
 */
bool vramio_symbol_exists(const char *name)
{
#ifdef CONFIG_KPROBES
	struct kprobe probe = { .symbol_name = name, .flags = KPROBE_FLAG_DISABLED };
	int ret = register_kprobe(&probe);

	if (!ret)
		unregister_kprobe(&probe);
	return ret != -ENOENT;
#else
	return false;
#endif
}

/* The last frame of the range of a pgmap that holds the frame `pfn`. */
unsigned long vramio_pgmap_end(unsigned long pfn)
{
	const struct dev_pagemap *pgmap = page_pgmap(pfn_to_page(pfn));
	int i;

	for (i = 0; i < pgmap->nr_range; i++) {
		if (pfn >= PHYS_PFN(pgmap->ranges[i].start) &&
		    pfn <= PHYS_PFN(pgmap->ranges[i].end))
			return PHYS_PFN(pgmap->ranges[i].end);
	}
	return pfn;
}

/*
 * Shows the request's data, run by run, until @see says no. What has no pages of the
 * caller's, as a discard, is not shown.
 */
bool vramio_rq_each_run(struct request *req, void *context,
			bool (*see)(void *, struct page *, unsigned int, unsigned int))
{
	struct req_iterator iter;
	struct bio_vec bv;

	if (req->rq_flags & RQF_SPECIAL_PAYLOAD || !blk_rq_payload_bytes(req))
		return true;
	rq_for_each_bvec(bv, req, iter) {
		if (!see(context, bv.bv_page, bv.bv_offset, bv.bv_len))
			return false;
	}
	return true;
}

/* The same of the first entries of a scatter list, which are there. */
bool vramio_sg_each_run(struct scatterlist *list, int entries, void *context,
			bool (*see)(void *, struct page *, unsigned int, unsigned int))
{
	struct scatterlist *sg;
	int i;

	for_each_sg(list, sg, entries, i) {
		if (!see(context, sg_page(sg), sg->offset, sg->length))
			return false;
	}
	return true;
}

/* Whether a scatter list has room for so many entries, as far as it says itself. */
bool vramio_sg_has(struct scatterlist *list, unsigned int entries)
{
	for (; entries && list; list = sg_next(list))
		entries--;
	return !entries;
}

/* Whether a scatter list begins in host memory. */
bool vramio_sg_is_ram(struct scatterlist *list, int entries)
{
	return entries <= 0 || !sg_page(list) || !is_pci_p2pdma_page(sg_page(list));
}

bool vramio_rq_has_integrity(struct request *req)
{
	return blk_integrity_rq(req);
}

unsigned int vramio_rq_segments(struct request *req)
{
	return blk_rq_nr_phys_segments(req);
}

enum dma_data_direction vramio_rq_direction(struct request *req)
{
	return rq_dma_dir(req);
}

int vramio_rq_map_sg(struct request *req, struct scatterlist *list)
{
	return blk_rq_map_sg(req, list);
}

bool vramio_dma_needs_unmap(struct device *dev)
{
	return dma_need_unmap(dev);
}

bool vramio_uses_iova(const struct dma_iova_state *state)
{
	return dma_use_iova((struct dma_iova_state *)state);
}

/* @iter of these is a struct blk_dma_iter. */

bool vramio_iter_start(struct request *req, struct device *dev, struct dma_iova_state *state,
		       void *iter)
{
	return blk_rq_dma_map_iter_start(req, dev, state, iter);
}

bool vramio_iter_next(struct request *req, struct device *dev, void *iter)
{
	return blk_rq_dma_map_iter_next(req, dev, iter);
}

/* An iterator without a piece. */
void vramio_iter_end(void *iter, u8 status)
{
	struct blk_dma_iter *it = iter;

	it->addr = 0;
	it->len = 0;
	it->status = (__force blk_status_t)status;
}

u8 vramio_iter_status(void *iter)
{
	return (__force u8)((struct blk_dma_iter *)iter)->status;
}

u64 vramio_iter_addr(void *iter)
{
	return ((struct blk_dma_iter *)iter)->addr;
}

u32 vramio_iter_len(void *iter)
{
	return ((struct blk_dma_iter *)iter)->len;
}

bool vramio_iter_by_bus(void *iter)
{
	return ((struct blk_dma_iter *)iter)->p2pdma.map == PCI_P2PDMA_MAP_BUS_ADDR;
}

void vramio_warn_stray(void)
{
	pr_warn_ratelimited("vramio: a storage driver gave memory back that it did not have\n");
}

/* --- statistics --- */

static u64 __percpu *per_cpu_counters(void *counters)
{
	return (u64 __percpu __force *)(unsigned long)counters;
}

/* @n counters for each CPU, all 0; NULL without memory. */
void *vramio_counters_new(size_t n)
{
	return (void *)(__force unsigned long)__alloc_percpu(n * sizeof(u64), sizeof(u64));
}

void vramio_counters_free(void *counters)
{
	free_percpu(per_cpu_counters(counters));
}

void vramio_counters_add(void *counters, size_t counter, u64 n)
{
	this_cpu_add(per_cpu_counters(counters)[counter], n);
}

u64 vramio_counters_sum(void *counters, size_t counter)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu_ptr(per_cpu_counters(counters), cpu)[counter]);
	return sum;
}

/* Adds to a counter of an open file and of a provider. */
static __always_inline void count(atomic64_t *open, void *provider, size_t counter, u64 n)
{
	atomic64_add(n, &open[counter]);
	this_cpu_add(per_cpu_counters(provider)[counter], n);
}

void vramio_count(atomic64_t *open, void *provider, size_t counter, u64 n)
{
	count(open, provider, counter, n);
}

u64 vramio_cycles(void)
{
	return get_cycles();
}

/*
 * Counts the end of a request that began at @start, and tells who listens: its bytes in
 * the counter @first; and one, by powers of two nanoseconds, in the @powers counters of
 * its ending, which follow for each ending. The last ending is a refusal, which has a
 * tracepoint of its own.
 */
void vramio_count_end(atomic64_t *open, void *provider, u64 start, size_t first, u32 ending,
		      u64 bytes, u32 reason)
{
	u64 ns = mul_u64_u32_div(get_cycles() - start, 1000000, tsc_khz ?: 1000000);
	size_t ended = first + 1 + ending * VRAMIO_CONST_LATENCIES;

	count(open, provider, first, bytes);
	count(open, provider, ended + min_t(u32, ilog2(ns | 1), VRAMIO_CONST_LATENCIES - 1), 1);
	if (trace_vramio_complete_enabled() && ending != VRAMIO_CONST_REFUSED)
		trace_vramio_complete(first != 0, bytes, ns, ending, reason);
}

void vramio_trace_register(u64 bytes, u32 runs, u32 domain, u32 devid)
{
	trace_vramio_register(bytes, runs, domain, devid);
}

void vramio_trace_revoke(u64 bytes, u32 reason)
{
	trace_vramio_revoke(bytes, reason);
}

void vramio_trace_submit(bool write, u64 file_offset, u64 buffer_offset, u64 len, u32 path)
{
	trace_vramio_submit(write, file_offset, buffer_offset, len, path);
}

void vramio_trace_refuse(u32 reason, u32 error)
{
	trace_vramio_refuse(reason, error);
}
