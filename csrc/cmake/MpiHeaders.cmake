# Looks for the headers of each kind of MPI, of which the plug-in needs nothing else. Sets
# HVL_MPI_FAMILIES and, for each of them, HVL_MPI_INCLUDES_<family>.
#
# FindMPI finds one MPI; several may be there, and a wheel may serve several. Every MPI has compiler
# wrappers that tell their folders (-show); Debian calls those of the second one by other names.
set(HVL_MPI AUTO CACHE STRING "Build the MPI plug-in: AUTO (when headers are found), ON or OFF")
set(HVL_MPI_INCLUDE_DIRS "" CACHE STRING "More folders with the mpi.h of some MPI")

# hvl_add_mpi(<folder>...): the folders of one MPI.
macro(hvl_add_mpi)
  foreach(folder ${ARGN})
    foreach(header IN ITEMS mpi.h mpi_abi.h)
      set(family "")
      if(EXISTS ${folder}/${header})
        file(STRINGS ${folder}/${header} found
             REGEX "^#define +(OMPI_MAJOR_VERSION|MPICH_VERSION|I_MPI_VERSION|MPI_ABI_VERSION) ")
        if(found MATCHES "OMPI_MAJOR_VERSION")
          set(family openmpi)
        elseif(header STREQUAL "mpi_abi.h")
          set(family abi)
        elseif(found MATCHES "MPICH_VERSION|I_MPI_VERSION")
          set(family mpich)
        endif()
      endif()
      if(family AND NOT family IN_LIST HVL_MPI_FAMILIES)
        list(APPEND HVL_MPI_FAMILIES ${family})
        set(HVL_MPI_INCLUDES_${family} ${ARGN})
        message(STATUS "MPI plug-in for ${family}: ${folder}/${header}")
      endif()
    endforeach()
  endforeach()
endmacro()

set(HVL_MPI_FAMILIES "")
if(HVL_MPI)
  foreach(wrapper IN ITEMS $ENV{MPICXX} mpicxx mpicxx.openmpi mpicxx.mpich mpiicpx)
    find_program(HVL_MPI_WRAPPER ${wrapper})
    if(HVL_MPI_WRAPPER)
      execute_process(COMMAND ${HVL_MPI_WRAPPER} -show OUTPUT_VARIABLE line ERROR_QUIET)
      string(REGEX MATCHALL "-I *[^ \n]+" folders "${line}")
      list(TRANSFORM folders REPLACE "^-I *" "")
      hvl_add_mpi(${folders})
    endif()
    unset(HVL_MPI_WRAPPER CACHE)
  endforeach()
  foreach(folder IN LISTS HVL_MPI_INCLUDE_DIRS)
    hvl_add_mpi(${folder})
  endforeach()
  if(NOT HVL_MPI_FAMILIES)
    if(HVL_MPI STREQUAL "AUTO")
      message(STATUS "MPI plug-in: not built, no mpi.h was found")
    else()
      message(FATAL_ERROR "HVL_MPI=${HVL_MPI}, but no mpi.h was found: neither by mpicxx in PATH "
                          "nor in HVL_MPI_INCLUDE_DIRS. On Debian or Ubuntu this installs one:\n"
                          "  apt-get install -y libopenmpi-dev\n")
    endif()
  endif()
endif()
