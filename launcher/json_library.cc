// Boost.JSON compiled once for the launcher.
#include <boost/json/src.hpp>
