// SPDX-License-Identifier: GPL-2.0
/* Static inlines and macros that Rust cannot call, for the test GPU's driver. */
#include <linux/dma-buf-mapping.h>
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/io.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/pci.h>
#include <linux/sched/signal.h>

/*
 * Makes every page of a fresh pci_alloc_p2pmem() chunk a counted page with one
 * reference, as drivers/pci/p2pdma.c does for its own mappings: the last
 * put_page() gives the page back to the pool. The chunk's single reference on the
 * pgmap is replaced by one for each page.
 */
void mockgpu_count_pages(void *kaddr, size_t pages)
{
	struct percpu_ref *ref = &page_pgmap(virt_to_page(kaddr))->ref;
	size_t i;

	for (i = 0; i < pages; i++) {
		struct page *page = virt_to_page(kaddr + i * PAGE_SIZE);

		VM_WARN_ON_ONCE_PAGE(page_ref_count(page), page);
		percpu_ref_get(ref);
		set_page_count(page, 1);
	}
	percpu_ref_put(ref);
}

void mockgpu_put_pages(void *kaddr, size_t pages)
{
	size_t i;

	for (i = 0; i < pages; i++)
		put_page(virt_to_page(kaddr + i * PAGE_SIZE));
}

struct page *mockgpu_page(void *kaddr)
{
	return virt_to_page(kaddr);
}

phys_addr_t mockgpu_phys(void *kaddr)
{
	return page_to_phys(virt_to_page(kaddr));
}

u32 mockgpu_pci_domain(struct pci_dev *pdev)
{
	return pci_domain_nr(pdev->bus);
}

/* Whether nobody but the allocation holds one of the pages. */
bool mockgpu_pages_idle(void *kaddr, size_t pages)
{
	size_t i;

	for (i = 0; i < pages; i++)
		if (page_ref_count(virt_to_page(kaddr + i * PAGE_SIZE)) != 1)
			return false;
	return true;
}

void mockgpu_fill(void *kaddr, int byte, size_t len)
{
	memset_io((void __force __iomem *)kaddr, byte, len);
}

void mockgpu_copy(void *to, const void *from, size_t len)
{
	memcpy(to, from, len);
}

bool mockgpu_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}

/* --- dma-buf --- */

/* As vfio-pci maps: addresses on the bus where the importer can use them. */
struct sg_table *mockgpu_map_p2p(struct dma_buf_attachment *attach, struct pci_dev *pdev, int bar,
				 struct phys_vec *pieces, size_t count, size_t len)
{
	struct p2pdma_provider *provider = pcim_p2pdma_provider(pdev, bar);

	if (!provider)
		return ERR_PTR(-ENODEV);
	return dma_buf_phys_vec_to_sgt(attach, provider, pieces, count, len, DMA_BIDIRECTIONAL);
}

void mockgpu_unmap_p2p(struct dma_buf_attachment *attach, struct sg_table *table)
{
	/*
	 * The kernel's helper sets this to 0 while importers look at the table, and then
	 * frees no entry of it (drivers/dma-buf/dma-buf-mapping.c, 7.2 and 7.3).
	 */
	table->orig_nents = table->nents;
	dma_buf_free_sgt(attach, table, DMA_BIDIRECTIONAL);
}

/* `page` is NULL for device memory, as in amdgpu's tables. */
void mockgpu_sg_set(struct scatterlist *sg, struct page *page, dma_addr_t addr, unsigned int len)
{
	sg_set_page(sg, page, len, 0);
	sg_dma_address(sg) = addr;
	sg_dma_len(sg) = len;
}

int mockgpu_mapping_error(struct device *dev, dma_addr_t addr)
{
	return dma_mapping_error(dev, addr);
}
