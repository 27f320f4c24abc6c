// What programs find in the shared library: everything else in it is hidden.
#pragma once

#define HVL_API [[gnu::visibility("default")]]
