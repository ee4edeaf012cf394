// SPDX-License-Identifier: GPL-2.0
/*
 * A client of the form with scatter lists, as a network file system's is. It moves no
 * data: it asks what it is told to by a file in debugfs, on memory of whoever writes
 * there, and shows the answers.
 *
 *	pin ADDRESS BYTES ENTRY	pins memory, as a list of entries of ENTRY bytes
 *	ram			puts host memory in place of the list's last entry
 *	ask DEVICE		about its first page, and the PCI device
 *	map DEVICE		maps the list for the PCI device
 *	map-long DEVICE		the same with one entry more than the list has
 *	map-irq DEVICE		the same as map, in an interrupt
 *	unmap			gives it back
 *	unmap-irq		the same in an interrupt
 *	fill DISK ROOM		has a list of ROOM entries filled for a request of the memory
 *	rounds DEVICE COUNT	maps and gives back
 *	release			lets go of the memory
 */
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/interrupt.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "ops.h"

#define MAX_PAGES 2048

int rpcrdma_register_nvfs_dma_ops(struct nvfs_dma_rw_ops *ops);
void rpcrdma_unregister_nvfs_dma_ops(void);

static struct nvfs_dma_rw_ops *client_ops;
/* Keeps the callbacks while they are used, and everything below. */
static DEFINE_MUTEX(client_lock);
static struct page *client_pages[MAX_PAGES];
static int client_pinned;
static struct sg_table client_list;
static int client_entries;
static struct pci_dev *client_device;
static char client_answer[PAGE_SIZE];
static struct dentry *client_dir;

int rpcrdma_register_nvfs_dma_ops(struct nvfs_dma_rw_ops *ops)
{
	if (!(ops->ft_bmap & FT_PREP_SGLIST) || !(ops->ft_bmap & FT_MAP_SGLIST) ||
	    ops->ft_bmap & (FT_ITER_START | FT_ITER_NEXT))
		return -EOPNOTSUPP;
	guard(mutex)(&client_lock);
	if (client_ops)
		return -EBUSY;
	client_ops = ops;
	return 0;
}
EXPORT_SYMBOL_GPL(rpcrdma_register_nvfs_dma_ops);

void rpcrdma_unregister_nvfs_dma_ops(void)
{
	guard(mutex)(&client_lock);
	client_ops = NULL;
}
EXPORT_SYMBOL_GPL(rpcrdma_unregister_nvfs_dma_ops);

static void client_release(void)
{
	if (client_pinned)
		unpin_user_pages(client_pages, client_pinned);
	client_pinned = 0;
	if (client_entries)
		sg_free_table(&client_list);
	client_entries = 0;
	pci_dev_put(client_device);
	client_device = NULL;
}

static int client_pin(unsigned long addr, unsigned long bytes, unsigned long entry)
{
	int pages = bytes >> PAGE_SHIFT, each = entry >> PAGE_SHIFT, i;
	struct scatterlist *sg;

	client_release();
	if (!pages || pages > MAX_PAGES || !each || pages % each)
		return -EINVAL;
	client_pinned = pin_user_pages_fast(addr, pages, FOLL_WRITE | FOLL_PCI_P2PDMA,
					    client_pages);
	if (client_pinned != pages) {
		if (client_pinned < 0)
			client_pinned = 0;
		client_release();
		return -EFAULT;
	}
	if (sg_alloc_table(&client_list, pages / each, GFP_KERNEL)) {
		client_release();
		return -ENOMEM;
	}
	client_entries = pages / each;
	for_each_sg(client_list.sgl, sg, client_entries, i)
		sg_set_page(sg, client_pages[i * each], entry, 0);
	return client_entries;
}

static int client_find(const char *name)
{
	struct device *dev = bus_find_device_by_name(&pci_bus_type, NULL, name);

	if (!dev)
		return -ENODEV;
	pci_dev_put(client_device);
	client_device = to_pci_dev(dev);
	return 0;
}

/* Maps or gives back; data is the number of entries, or 0. */
static int client_result;
static void client_map(void *data)
{
	client_result = client_ops->dma_map_sg_attrs(&client_device->dev, client_list.sgl,
						     *(int *)data, DMA_BIDIRECTIONAL, 0);
}

static void client_unmap(void *data)
{
	client_result = client_ops->unmap_sg(&client_device->dev, client_list.sgl,
						 *(int *)data, DMA_BIDIRECTIONAL);
}

/* A call in a softirq, as completions of a network come. */
static void (*client_soft_call)(void *);
static int client_soft_entries;
static DECLARE_COMPLETION(client_soft_done);

static void client_soft(struct tasklet_struct *tasklet)
{
	client_soft_call(&client_soft_entries);
	complete(&client_soft_done);
}

static DECLARE_TASKLET(client_tasklet, client_soft);

static int client_call(void (*call)(void *), int entries, bool interrupt)
{
	client_result = -1000;
	if (!interrupt) {
		call(&entries);
		return client_result;
	}
	client_soft_call = call;
	client_soft_entries = entries;
	reinit_completion(&client_soft_done);
	tasklet_schedule(&client_tasklet);
	wait_for_completion(&client_soft_done);
	return client_result;
}

/* A request of the pinned memory that nobody starts, for the queue of a disk. */
static int client_fill(const char *disk, unsigned int room)
{
	int each = client_pinned / client_entries, i, ret = -ENOMEM;
	struct scatterlist *sg;
	struct sg_table list;
	struct bio_vec *table;
	struct request *req;
	struct file *file;
	struct bio bio;

	file = bdev_file_open_by_path(disk, BLK_OPEN_READ, NULL, NULL);
	if (IS_ERR(file))
		return PTR_ERR(file);
	table = kcalloc(client_entries, sizeof(*table), GFP_KERNEL);
	req = kzalloc(sizeof(*req), GFP_KERNEL);
	if (!table || !req || sg_alloc_table(&list, room, GFP_KERNEL))
		goto out;
	for_each_sg(client_list.sgl, sg, client_entries, i)
		bvec_set_page(&table[i], sg_page(sg), each * PAGE_SIZE, 0);
	bio_init(&bio, file_bdev(file), table, client_entries, REQ_OP_READ);
	bio.bi_vcnt = client_entries;
	bio.bi_iter.bi_size = client_pinned * PAGE_SIZE;
	req->q = bdev_get_queue(file_bdev(file));
	req->bio = &bio;
	req->biotail = &bio;
	req->__data_len = bio.bi_iter.bi_size;
	req->nr_phys_segments = client_entries;
	ret = client_ops->blk_rq_map_sg(req->q, req, list.sgl);
	/* Nothing is beyond what it said. */
	if (ret > 0 && ret != sg_nents(list.sgl))
		ret = -2000;
	bio_uninit(&bio);
	sg_free_table(&list);
out:
	kfree(table);
	kfree(req);
	bdev_fput(file);
	return ret;
}

static int client_rounds(unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++) {
		if (client_call(client_map, client_entries, false) <= 0 ||
		    client_call(client_unmap, client_entries, i & 1) <= 0)
			break;
		cond_resched();
	}
	return i;
}

static void client_show(int ret)
{
	struct scatterlist *sg;
	int at, i;

	at = scnprintf(client_answer, sizeof(client_answer), "%d\n", ret);
	if (ret <= 0 || !client_entries)
		return;
	for_each_sg(client_list.sgl, sg, min(ret, client_entries), i)
		at += scnprintf(client_answer + at, sizeof(client_answer) - at, "%llx %u\n",
				(u64)sg_dma_address(sg), sg_dma_len(sg));
}

static int client_do(const char *text)
{
	unsigned long addr, bytes, entry;
	unsigned int count;
	char word[64];
	int ret;

	client_answer[0] = 0;
	if (sscanf(text, "pin %lx %lu %lu", &addr, &bytes, &entry) == 3)
		return client_pin(addr, bytes, entry);
	if (!strncmp(text, "release", 7)) {
		client_release();
		return 0;
	}
	if (!client_entries || !client_ops)
		return -ENOENT;
	if (!strncmp(text, "ram", 3)) {
		sg_set_page(sg_last(client_list.sgl, client_entries), ZERO_PAGE(0), PAGE_SIZE, 0);
		return 0;
	}
	if (sscanf(text, "fill %63s %u", word, &count) == 2) {
		scnprintf(client_answer, sizeof(client_answer), "%d\n", client_fill(word, count));
		return 0;
	}
	if (!strncmp(text, "unmap", 5)) {
		ret = client_call(client_unmap, client_entries, !strncmp(text, "unmap-irq", 9));
		scnprintf(client_answer, sizeof(client_answer), "%d\n", ret);
		return 0;
	}
	if (sscanf(text, "ask %63s", word) == 1) {
		struct page *page = sg_page(client_list.sgl);
		unsigned int gpu;

		if (client_find(word))
			return -ENODEV;
		gpu = client_ops->gpu_index(page);
		scnprintf(client_answer, sizeof(client_answer), "%d %d %u %u %u\n",
			  client_ops->is_gpu_page(page), client_ops->is_gpu_page(ZERO_PAGE(0)), gpu,
			  client_ops->device_priority(&client_device->dev, gpu),
			  client_ops->device_priority(&client_device->dev, gpu + 100));
		return 0;
	}
	if (sscanf(text, "rounds %63s %u", word, &count) == 2) {
		if (client_find(word))
			return -ENODEV;
		scnprintf(client_answer, sizeof(client_answer), "%d\n", client_rounds(count));
		return 0;
	}
	if (sscanf(text, "map %63s", word) == 1 && !client_find(word)) {
		client_show(client_call(client_map, client_entries, false));
		return 0;
	}
	if (sscanf(text, "map-long %63s", word) == 1 && !client_find(word)) {
		client_show(client_call(client_map, client_entries + 1, false));
		return 0;
	}
	if (sscanf(text, "map-irq %63s", word) == 1 && !client_find(word)) {
		client_show(client_call(client_map, client_entries, true));
		return 0;
	}
	return -EINVAL;
}

static ssize_t client_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	char text[160];
	int ret;

	if (len >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, len))
		return -EFAULT;
	text[len] = 0;
	mutex_lock(&client_lock);
	ret = client_do(text);
	mutex_unlock(&client_lock);
	return ret < 0 ? ret : len;
}

static ssize_t client_read(struct file *file, char __user *to, size_t len, loff_t *pos)
{
	guard(mutex)(&client_lock);
	return simple_read_from_buffer(to, len, pos, client_answer, strlen(client_answer));
}

static const struct file_operations client_fops = {
	.owner = THIS_MODULE,
	.read = client_read,
	.write = client_write,
};

static int __init client_init(void)
{
	client_dir = debugfs_create_dir("vramio_netclient", NULL);
	debugfs_create_file("ask", 0600, client_dir, NULL, &client_fops);
	return 0;
}
module_init(client_init);

static void __exit client_exit(void)
{
	debugfs_remove_recursive(client_dir);
	tasklet_kill(&client_tasklet);
	/* What it has mapped it gives back before it goes. */
	mutex_lock(&client_lock);
	if (client_ops && client_entries)
		client_call(client_unmap, client_entries, false);
	client_release();
	mutex_unlock(&client_lock);
}
module_exit(client_exit);

MODULE_DESCRIPTION("Test: a storage client that asks by scatter lists");
MODULE_LICENSE("GPL");
