// SPDX-License-Identifier: Apache-2.0
// Compiles Boost.JSON once for the launcher.
#include <boost/json/src.hpp>
