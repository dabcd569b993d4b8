// SPDX-License-Identifier: Apache-2.0
// Boost.JSON compiled once for the launcher.
#include <boost/json/src.hpp>
