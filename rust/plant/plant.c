// SPDX-License-Identifier: GPL-2.0
/* Planted bugs that C makes: see plant_main.rs. */
#include <linux/dma-mapping.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/preempt.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

enum plant_bug {
	PLANT_OUT_OF_BOUNDS = 3,
	PLANT_SLEEP = 4,
	PLANT_LOCK_ORDER = 5,
	PLANT_LEAK = 6,
	PLANT_OBJECT = 7,
	PLANT_DMA_SIZE = 8,
	PLANT_DMA_LEAK = 9,
};

/* A read behind an allocation. */
static int out_of_bounds(void)
{
	u8 *memory = kzalloc(61, GFP_KERNEL);

	if (!memory)
		return -ENOMEM;
	OPTIMIZER_HIDE_VAR(memory);
	(void)READ_ONCE(memory[62]);
	kfree(memory);
	return 0;
}

/* An allocation that may sleep where nothing may. */
static int sleep_in_atomic(void)
{
	void *memory;

	preempt_disable();
	memory = kmalloc(64, GFP_KERNEL);
	preempt_enable();
	kfree(memory);
	return 0;
}

static DEFINE_MUTEX(first);
static DEFINE_MUTEX(second);

/* Two locks in both orders. */
static int lock_order(void)
{
	mutex_lock(&first);
	mutex_lock(&second);
	mutex_unlock(&second);
	mutex_unlock(&first);
	mutex_lock(&second);
	mutex_lock(&first);
	mutex_unlock(&first);
	mutex_unlock(&second);
	return 0;
}

/*
 * Memory that nobody knows any more. More than one object: a stale pointer may be
 * left on a stack.
 */
static int leak(void)
{
	int i;

	for (i = 0; i < 256; i++) {
		u8 *memory = kmalloc(200, GFP_KERNEL);

		/* Or the compiler leaves it all out. */
		if (memory)
			WRITE_ONCE(*memory, 1);
	}
	return 0;
}

struct busy {
	struct delayed_work work;
};

static void nothing(struct work_struct *work)
{
}

/* Memory that is freed with a timer running in it. */
static int free_active_object(void)
{
	struct busy *busy = kzalloc(sizeof(*busy), GFP_KERNEL);

	if (!busy)
		return -ENOMEM;
	INIT_DELAYED_WORK(&busy->work, nothing);
	schedule_delayed_work(&busy->work, 3600 * HZ);
	kfree(busy);
	return 0;
}

/* A mapping for the test GPU that is ended with another size, or never. */
static int misuse_dma(bool end)
{
	struct pci_dev *gpu = pci_get_device(0x1af4, 0x1110, NULL);
	void *memory = kzalloc(512, GFP_KERNEL);
	dma_addr_t addr;

	if (!gpu || !memory) {
		kfree(memory);
		pci_dev_put(gpu);
		return -ENODEV;
	}
	addr = dma_map_single(&gpu->dev, memory, 512, DMA_FROM_DEVICE);
	if (end)
		dma_unmap_single(&gpu->dev, addr, 256, DMA_FROM_DEVICE);
	if (end)
		kfree(memory);
	pci_dev_put(gpu);
	return 0;
}

int vramio_plant(u32 bug)
{
	switch (bug) {
	case PLANT_OUT_OF_BOUNDS:
		return out_of_bounds();
	case PLANT_SLEEP:
		return sleep_in_atomic();
	case PLANT_LOCK_ORDER:
		return lock_order();
	case PLANT_LEAK:
		return leak();
	case PLANT_OBJECT:
		return free_active_object();
	case PLANT_DMA_SIZE:
		return misuse_dma(true);
	case PLANT_DMA_LEAK:
		return misuse_dma(false);
	}
	return -EINVAL;
}
