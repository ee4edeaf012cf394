/* SPDX-License-Identifier: GPL-2.0 */
#include <linux/hrtimer_types.h>
#include <linux/blk_types.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>

#include "stats.h"

/* Casted macros, which bindgen cannot evaluate. */
const unsigned int VRAMIO_CONST_FMODE_READ = (__force unsigned int)FMODE_READ;
const unsigned int VRAMIO_CONST_FMODE_WRITE = (__force unsigned int)FMODE_WRITE;
const unsigned int VRAMIO_CONST_FMODE_CAN_ODIRECT = (__force unsigned int)FMODE_CAN_ODIRECT;
const unsigned int VRAMIO_CONST_FMODE_NOWAIT = (__force unsigned int)FMODE_NOWAIT;
const int VRAMIO_CONST_IOCB_DIRECT = (__force int)IOCB_DIRECT;
const int VRAMIO_CONST_IOCB_NOWAIT = (__force int)IOCB_NOWAIT;
const int VRAMIO_CONST_IOCB_WRITE = (__force int)IOCB_WRITE;
const unsigned char VRAMIO_CONST_BLK_STS_OK = (__force unsigned char)BLK_STS_OK;
const unsigned char VRAMIO_CONST_BLK_STS_RESOURCE = (__force unsigned char)BLK_STS_RESOURCE;
const unsigned char VRAMIO_CONST_BLK_STS_IOERR = (__force unsigned char)BLK_STS_IOERR;
const unsigned char VRAMIO_CONST_BLK_STS_INVAL = (__force unsigned char)BLK_STS_INVAL;
const unsigned long VRAMIO_CONST_DMA_ATTR_MMIO = DMA_ATTR_MMIO;
