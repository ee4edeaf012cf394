/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The hook in the stock NVMe driver (hook.sed): before it maps a request, it asks the
 * module that registered itself under the published name. It is written to be asked
 * for mischief, too: `misbehave` of the module's parameters.
 */
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/smp.h>

#include "ops.h"

enum hook_misbehave {
	/* Gives the last piece back twice. */
	HOOK_UNMAP_TWICE = 1,
	/* Takes an error for a request in host memory. */
	HOOK_IGNORE_STATUS = 2,
	/* Maps in an interrupt. */
	HOOK_INTERRUPT = 4,
	/* Does not wait for requests when it is to forget the callbacks. */
	HOOK_SLOPPY = 8,
	/* Asks about a request whose second page is host memory. */
	HOOK_MIXED = 16,
	/* Asks for more pieces than there are. */
	HOOK_NEXT_TOO_OFTEN = 32,
	/* Maps, and gives back, each request once more. */
	HOOK_MAP_TWICE = 64,
	/* Gives pieces back for another device. */
	HOOK_WRONG_DEVICE = 128,
};

static unsigned int misbehave;
module_param(misbehave, uint, 0600);
static unsigned int delay_ms;
module_param(delay_ms, uint, 0600);
MODULE_PARM_DESC(delay_ms, "Stands still for so long before it asks about GPU memory");
/* How often each request on GPU memory is mapped and given back before it is started. */
static unsigned int rounds;
module_param(rounds, uint, 0600);

/* What it did; each is exact. */
static struct hook_counters {
	/* Requests, and pieces, by callbacks; pieces that were given back. */
	atomic64_t requests, segments, unmapped;
	/* Requests on P2PDMA memory that the driver mapped by itself. */
	atomic64_t own;
	/* Requests that failed, since the callback said so. */
	atomic64_t failed;
	/* Callbacks that did what they should not have: see below. */
	atomic64_t wrong;
	/* Asked for by `misbehave`, and refused. */
	atomic64_t refused;
	atomic64_t rounds;
} hook_counters;

static int hook_show(char *buffer, const struct kernel_param *kp)
{
	const struct hook_counters *c = &hook_counters;

	return sysfs_emit(buffer,
			  "requests:\t%lld\nsegments:\t%lld\nunmapped:\t%lld\nown:\t%lld\n"
			  "failed:\t%lld\nwrong:\t%lld\nrefused:\t%lld\nrounds:\t%lld\n",
			  atomic64_read(&c->requests), atomic64_read(&c->segments),
			  atomic64_read(&c->unmapped), atomic64_read(&c->own),
			  atomic64_read(&c->failed), atomic64_read(&c->wrong),
			  atomic64_read(&c->refused), atomic64_read(&c->rounds));
}

static const struct kernel_param_ops hook_show_ops = { .get = hook_show };
module_param_cb(counters, &hook_show_ops, NULL, 0400);

static struct nvfs_dma_rw_blk_iter_ops *hook_ops;
/* Requests that use it. */
static atomic_t hook_users = ATOMIC_INIT(0);

enum hook_answer { HOOK_OTHERS, HOOK_MAPPED, HOOK_FAILED };

/* In the request. */
struct hook {
	struct nvfs_dma_rw_blk_iter_ops *ops;
	struct dma_iova_state *state;
	void *cookie;
	unsigned int segments;
};

int nvme_v2_register_nvfs_dma_ops(struct nvfs_dma_rw_blk_iter_ops *ops);
void nvme_v2_unregister_nvfs_dma_ops(void);

int nvme_v2_register_nvfs_dma_ops(struct nvfs_dma_rw_blk_iter_ops *ops)
{
	if (!(ops->ft_bmap & FT_ITER_START) || !(ops->ft_bmap & FT_ITER_NEXT))
		return -EOPNOTSUPP;
	return cmpxchg(&hook_ops, NULL, ops) ? -EBUSY : 0;
}
EXPORT_SYMBOL_GPL(nvme_v2_register_nvfs_dma_ops);

void nvme_v2_unregister_nvfs_dma_ops(void)
{
	WRITE_ONCE(hook_ops, NULL);
	if (misbehave & HOOK_SLOPPY)
		return;
	synchronize_rcu();
	while (atomic_read(&hook_users))
		msleep(10);
}
EXPORT_SYMBOL_GPL(nvme_v2_unregister_nvfs_dma_ops);

static bool hook_has(const struct hook *hook)
{
	return hook->cookie != NULL;
}

static void hook_check(bool right)
{
	if (!right)
		atomic64_inc(&hook_counters.wrong);
}

static int hook_unmap_one(const struct hook *hook, struct request *req, struct device *dev)
{
	/* The address and the size are not what counts, and some drivers pass none. */
	return hook->ops->unmap_page(dev, hook->cookie, 0, 0, rq_dma_dir(req));
}

/* Gives everything back. Returns whether there was something. */
static bool hook_unmap(struct hook *hook, struct request *req, struct device *dev,
		       struct dma_iova_state *state)
{
	if (!hook->cookie || hook->state != state)
		return false;
	for (; hook->segments; hook->segments--) {
		if (misbehave & HOOK_WRONG_DEVICE) {
			hook_check(hook_unmap_one(hook, req, dev->parent) == -1);
			atomic64_inc(&hook_counters.refused);
		}
		hook_check(hook_unmap_one(hook, req, dev) == 0);
		atomic64_inc(&hook_counters.unmapped);
	}
	if (misbehave & HOOK_UNMAP_TWICE) {
		hook_check(hook_unmap_one(hook, req, dev) == -1);
		atomic64_inc(&hook_counters.refused);
	}
	hook->cookie = NULL;
	atomic_dec(&hook_users);
	return true;
}

/* A question that is asked in an interrupt. */
struct hook_question {
	struct nvfs_dma_rw_blk_iter_ops *ops;
	struct request *req;
	struct device *dev;
	struct dma_iova_state *state;
	struct blk_dma_iter *iter;
	void **cookie;
	int answer;
};

static void hook_ask(void *data)
{
	struct hook_question *q = data;

	q->answer = q->ops->blk_rq_dma_map_iter_start(q->req, q->dev, q->state, q->iter, q->cookie);
}

/* A request of the first page of this one, and a page of host memory. */
static int hook_ask_mixed(struct hook_question *q)
{
	struct bio_vec table[2] = { bio_iovec(q->req->bio), { } };
	struct request *req;
	struct bio bio;
	int ret;

	req = kmemdup(q->req, sizeof(*req), GFP_ATOMIC);
	if (!req)
		return 0;
	table[0].bv_len = min_t(u32, table[0].bv_len, PAGE_SIZE - table[0].bv_offset);
	bvec_set_page(&table[1], ZERO_PAGE(0), PAGE_SIZE, 0);
	bio_init(&bio, q->req->bio->bi_bdev, table, 2, q->req->bio->bi_opf);
	bio.bi_vcnt = 2;
	bio.bi_iter.bi_size = table[0].bv_len + PAGE_SIZE;
	req->bio = &bio;
	req->biotail = &bio;
	req->__data_len = bio.bi_iter.bi_size;
	req->nr_phys_segments = 2;
	ret = q->ops->blk_rq_dma_map_iter_start(req, q->dev, q->state, q->iter, q->cookie);
	bio_uninit(&bio);
	kfree(req);
	return ret;
}

/* Maps all of a request and gives it back. */
static void hook_round(struct hook_question *q)
{
	unsigned int segments = 0;

	hook_ask(q);
	if (q->answer == 1) {
		do {
			segments++;
		} while (q->ops->blk_rq_dma_map_iter_next(q->req, q->dev, q->state, q->iter));
		hook_check(q->iter->status == BLK_STS_OK);
		while (segments--)
			hook_check(q->ops->unmap_page(q->dev, *q->cookie, 0, 0,
							  rq_dma_dir(q->req)) == 0);
		atomic64_inc(&hook_counters.rounds);
	}
}

/* What is done to a request on GPU memory on demand, before it is asked about. */
static void hook_before(struct hook_question *q)
{
	unsigned int round, many = READ_ONCE(rounds);
	int other;

	if (delay_ms)
		mdelay(delay_ms);
	if (misbehave & HOOK_MAP_TWICE)
		hook_round(q);
	for (round = 0; round < many; round++)
		hook_round(q);
	if (misbehave & HOOK_MIXED) {
		hook_check(hook_ask_mixed(q) == 0 && q->iter->status != BLK_STS_OK);
		atomic64_inc(&hook_counters.refused);
	}
	if (misbehave & HOOK_INTERRUPT) {
		other = cpumask_any_but(cpu_online_mask, raw_smp_processor_id());
		q->answer = -1;
		smp_call_function_single(other, hook_ask, q, 1);
		hook_check(q->answer == 0 && q->iter->status != BLK_STS_OK);
		atomic64_inc(&hook_counters.refused);
	}
}

/* Asks about a request. */
static enum hook_answer hook_start(struct hook *hook, struct request *req, struct device *dev,
				   struct dma_iova_state *state, struct blk_dma_iter *iter)
{
	struct hook_question q = { .req = req, .dev = dev, .state = state, .iter = iter };
	bool p2pdma = req->bio && bio_has_data(req->bio) &&
		      !(req->rq_flags & RQF_SPECIAL_PAYLOAD) &&
		      is_pci_p2pdma_page(bio_iovec(req->bio).bv_page);
	bool failed;

	*hook = (struct hook){ .state = state };
	atomic_inc(&hook_users);
	smp_mb__after_atomic();
	hook->ops = READ_ONCE(hook_ops);
	if (!hook->ops)
		goto others;
	q.ops = hook->ops;
	q.cookie = &hook->cookie;
	if (hook->ops->is_gpu_page(p2pdma ? bio_iovec(req->bio).bv_page : ZERO_PAGE(0))) {
		hook_check(p2pdma);
		hook_before(&q);
	}
	/* As a vendor's driver leaves it: on the stack, with whatever was there. */
	memset(iter, 0x5a, sizeof(*iter));
	hook_ask(&q);
	if (q.answer == 1) {
		hook_check(hook->cookie != NULL);
		hook->segments = 1;
		atomic64_inc(&hook_counters.requests);
		atomic64_inc(&hook_counters.segments);
		return HOOK_MAPPED;
	}
	hook->cookie = NULL;
	failed = iter->status != BLK_STS_OK;
	if (failed && !(misbehave & HOOK_IGNORE_STATUS)) {
		atomic_dec(&hook_users);
		atomic64_inc(&hook_counters.failed);
		return HOOK_FAILED;
	}
others:
	atomic_dec(&hook_users);
	if (p2pdma)
		atomic64_inc(&hook_counters.own);
	return HOOK_OTHERS;
}

/* The next piece, by the callback if the first one was. */
static bool hook_next(struct hook *hook, struct request *req, struct device *dev,
		      struct blk_dma_iter *iter)
{
	unsigned int more;

	if (!hook->cookie)
		return blk_rq_dma_map_iter_next(req, dev, iter);
	if (hook->ops->blk_rq_dma_map_iter_next(req, dev, hook->state, iter)) {
		hook->segments++;
		atomic64_inc(&hook_counters.segments);
		return true;
	}
	for (more = 0; misbehave & HOOK_NEXT_TOO_OFTEN && more < 3; more++) {
		hook_check(!hook->ops->blk_rq_dma_map_iter_next(req, dev, hook->state, iter));
		atomic64_inc(&hook_counters.refused);
	}
	return false;
}
