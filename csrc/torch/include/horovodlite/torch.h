// All of horovodlite for LibTorch: operations on tensors, equal beginnings, DistributedOptimizer.
#pragma once

#include "horovodlite/error.h"
#include "horovodlite/session.h"
#include "horovodlite/torch/broadcast.h"
#include "horovodlite/torch/handle.h"
#include "horovodlite/torch/operations.h"
#include "horovodlite/torch/optimizer.h"
