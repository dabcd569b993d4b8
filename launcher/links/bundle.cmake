# The bundle that is sent to hosts which lack this build: lib/ivyrun/bundle-ARCH.tar beside bin/, and its
# SHA-256. Equal contents give an equal tar, so an unchanged ivy-node is never sent again.
if(TARGET ivy-node)
  set(IVY_BUNDLE ${CMAKE_BINARY_DIR}/lib/ivyrun/bundle-${CMAKE_SYSTEM_PROCESSOR}.tar)
  add_custom_command(OUTPUT ${IVY_BUNDLE} ${IVY_BUNDLE}.sha256
    COMMAND ${CMAKE_COMMAND} -DOUT=${IVY_BUNDLE} -DFILES=$<TARGET_FILE:ivy-node>
            -P ${CMAKE_CURRENT_SOURCE_DIR}/make_bundle.cmake
    DEPENDS ivy-node ${CMAKE_CURRENT_SOURCE_DIR}/make_bundle.cmake VERBATIM)
  add_custom_target(ivy_bundle ALL DEPENDS ${IVY_BUNDLE})
endif()
